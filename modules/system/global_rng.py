"""Seeding the global generator temporarily, for libraries that use it internally (dropout)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from modules.system.devices import Device


@contextlib.contextmanager
def seeded_global_rng(seed: int, device: Device) -> Iterator[None]:
    """Seed the global generators of the CPU and of `device`; their previous state is restored on exit."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device.torch] if on_gpu else [], device_type="cuda"):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device.torch):
                torch.cuda.manual_seed(seed)
        yield
