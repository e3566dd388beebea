"""The devices and the precision of a run, and the guard that checks devices in debug mode."""

from __future__ import annotations

from dataclasses import dataclass

from modules.config.sections.general import General
from modules.memory.guard import DeviceGuard
from modules.system.devices import Device, resolve_device
from trainer.step.precision import Precision


@dataclass(frozen=True, eq=False)
class Machine:
    """The devices and the precision of a run."""

    train_device: Device
    temp_device: Device
    precision: Precision
    guard: DeviceGuard | None


def machine_of(general: General, precision: str, *, autocast_cache: bool = True) -> Machine:
    """Return the devices and the precision of a run. Raises DarkroomError for a device that is not available."""
    device = resolve_device(general.train_device)
    return Machine(
        train_device=device,
        temp_device=resolve_device(general.temp_device),
        precision=Precision(precision, device, autocast_cache),
        guard=DeviceGuard() if general.debug_checks else None,
    )
