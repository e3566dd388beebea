"""The number format of the mathematics: autocast, the loss scaler of float16, TF32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from modules.system.devices import Device


@dataclass(frozen=True, slots=True)
class Precision:
    """What a config's precision means on a device."""

    name: str
    device: Device

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype matrix products are done in, and in which batches arrive."""
        match self.name:
            case "bfloat16":
                return torch.bfloat16
            case "float16":
                return torch.float16
            case _:
                return torch.float32

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context every forward pass of a run is done in."""
        if self.compute_dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)

    def make_scaler(self) -> torch.amp.GradScaler:
        """Return the loss scaler: at work for float16, whose gradients would vanish, else passing all through."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "float16")


@contextlib.contextmanager
def process_settings(*, num_threads: int, precision: str, deterministic: bool) -> Iterator[None]:
    """Set what torch keeps per process, for as long as a run lasts; nothing leaks into the next one.

    With the precision "float32" nothing is computed in TF32, to which torch else rounds what convolutions take on a
    GPU; with "tfloat32" the products of matrices are, too.
    """
    threads = torch.get_num_threads()
    matmul, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(num_threads)
    torch.set_float32_matmul_precision("high" if precision == "tfloat32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.use_deterministic_algorithms(was_deterministic, warn_only=True)
