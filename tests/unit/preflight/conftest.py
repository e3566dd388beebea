"""A run that could start, and a machine that is always the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config.schema import Config
from modules.system import hardware
from modules.system.hardware import Hardware
from tests.builders.configs import small_config
from tests.unit.preflight.setups import write_model


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every machine look like one without a GPU."""
    monkeypatch.setattr(hardware, "here", lambda: Hardware("cpu", is_mac=False, capabilities=None))


@pytest.fixture
def config(tmp_path: Path, images: Path) -> Config:
    """A run that could start."""
    return small_config(tmp_path, model=write_model(tmp_path / "model"), images=images)
