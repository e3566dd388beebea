"""The global generator, for what draws from it inside others' modules (dropout): seeded for a while, then as before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from modules.system.devices import Device


@contextlib.contextmanager
def seeded_global_rng(seed: int, device: Device) -> Iterator[None]:
    """Let the global generators of the processor and of `device` begin at `seed`; their former state comes back."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device.torch] if on_gpu else [], device_type="cuda"):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device.torch):
                torch.cuda.manual_seed(seed)
        yield
