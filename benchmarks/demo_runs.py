"""The demo preset as runs to measure, on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.loop_speed import demo_config
from modules.config.presets import list_presets
from modules.config.schema import Config
from modules.system.devices import Device
from modules.system.errors import DarkroomError

ENDLESS = 1_000_000  # epochs; a measurement ends when it has trained enough


def demo_preset(device: Device, name: str = "#demo") -> Config:
    """Return a preset, #demo or #demo flow, for a device. Raises DarkroomError if it is missing."""
    preset = next((p for p in list_presets() if p.name == name), None)
    if preset is None:
        raise DarkroomError(
            f"The preset {name} is missing.", advice="Restore training_presets from the program's source."
        )
    config = preset.load().config
    return config.model_copy(update={"general": config.general.model_copy(update={"train_device": device.name})})


def demo_run(folder: Path, device: Device, *, repeats: int, **changes: Any) -> Config:
    """Return a run of the preset that does not end by itself, with changes of its training."""
    return demo_config(demo_preset(device), folder, repeats=repeats, epochs=ENDLESS, **changes)
