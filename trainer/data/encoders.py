"""The model's encoders as the caches and the loader use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from modules.data.conditioning import Conditioning
from modules.families.protocol import ModelFamily
from modules.system.devices import CPU, Device, move, pin

_GPU_BATCH_SIZE = 8  # images that are moved and written together; their latents are small


@dataclass(frozen=True, eq=False)
class Encoders:
    """The encoders of a run. Captions are encoded one at a time, under the run's `autocast()`.

    The last bits of an image's latents would depend on the batch, so the family encodes each image of one alone.
    """

    family: ModelFamily
    device: Device
    autocast: Callable[[], AbstractContextManager[object]]

    @property
    def batch_size(self) -> int:
        """The number of images that are encoded before their latents go to the CPU; one on a CPU, to stop early."""
        return 1 if self.device.is_cpu else _GPU_BATCH_SIZE

    def encode(self, images_B3PP: torch.Tensor) -> torch.Tensor:
        """Return the latents (B, C, H, W) of images, on the training device."""
        with torch.no_grad():
            return self.family.encode_images(move(images_B3PP, self.device))

    def pin_for_gpu(self, images_B3PP: torch.Tensor) -> torch.Tensor:
        """Return images in memory from which a GPU copies them without waiting; on another thread."""
        return pin(images_B3PP, self.device)

    def latents(self, images_B3PP: torch.Tensor) -> torch.Tensor:
        """Return the latents (B, C, H, W) of images, on the CPU."""
        return move(self.encode(images_B3PP), CPU)

    def latents_in_float32(self, images_B3PP: torch.Tensor) -> torch.Tensor:
        """Return the latents of images, on the CPU, from a VAE that is in float32 for this call."""
        with in_float32([p.module for p in self.family.parts.values() if p.spec.role == "vae"]):
            return self.latents(images_B3PP)

    def caption(self, caption: str) -> Conditioning:
        """Return the conditioning of one caption, on the training device."""
        with torch.no_grad(), self.autocast():
            return self.family.encode_prompts([caption])


@contextmanager
def in_float32(modules: list[nn.Module]) -> Iterator[None]:
    """Convert the 16-bit weights of modules to float32 for the duration of a block; then the very same are back."""
    tensors = [t for m in modules for t in (*m.parameters(), *m.buffers())]
    kept = [(t, t.data) for t in tensors if t.is_floating_point() and t.dtype.itemsize == 2]
    for tensor, data in kept:
        tensor.data = data.float()
    try:
        yield
    finally:
        for tensor, data in kept:
            tensor.data = data
