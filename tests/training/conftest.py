"""What must hold for every family alike."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["tiny_sd", "tiny_sdxl"])
def any_model(request: pytest.FixtureRequest) -> Path:
    """A tiny model of each family in turn; nobody may write to it."""
    folder: Path = request.getfixturevalue(request.param)
    return folder
