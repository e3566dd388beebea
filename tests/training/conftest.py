"""What must hold for every family alike."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["tiny_sd", "tiny_sdxl"])
def any_model(request: pytest.FixtureRequest) -> Path:
    """A tiny model of each family in turn; nobody may write to it."""
    folder: Path = request.getfixturevalue(request.param)
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the second family of a test with the mark `one_family` to the full suite."""
    for item in items:
        if item.get_closest_marker("one_family") and "[tiny_sdxl" in item.name:
            item.add_marker(pytest.mark.full)
