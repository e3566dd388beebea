"""The model's encoders as the caches and the loader use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from modules.data.cache.build import LoadableImage
from modules.data.captions.seen import ReadCaption
from modules.data.conditioning import Conditioning
from modules.families.protocol import FamilyThatSees, ModelFamily
from modules.system.devices import CPU, Device, move, pin
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason

_GPU_BATCH_SIZE = 8  # images that are moved and written together; their latents are small


@dataclass(frozen=True, eq=False)
class Encoders:
    """The encoders of a run; captions are encoded under its `autocast()`.

    The last bits of an image's latents would depend on its batch, so the family encodes each image of a batch alone.
    The last bits of a caption's states depend on the size of the batch, but not on the other captions in it: so all
    batches of captions have the same size, whatever is missing from the cache.
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

    @property
    def captions_at_once(self) -> int:
        """The number of captions of one chunk that are encoded together; one on a CPU, to stop early."""
        return 1 if self.device.is_cpu else self.family.spec.text.prompts_at_once

    def captions(self, captions: Sequence[ReadCaption]) -> list[Conditioning]:
        """Return the conditioning of each of some captions, on the training device.

        Those of one chunk are encoded in batches of `captions_at_once`, filled up with the empty prompt, longer ones
        alone. So the states of a caption are the same with any others.
        """
        at_once, conditioning = self.captions_at_once, dict[ReadCaption, Conditioning]()
        with torch.no_grad(), self.autocast():
            alone = dict.fromkeys(c for c in captions if isinstance(c, str))
            short = list(filter(self._has_one_chunk, alone))
            for batch in (short[start : start + at_once] for start in range(0, len(short), at_once)):
                encoded = self.family.encode_prompts([*batch, *[""] * (at_once - len(batch))])
                conditioning |= {caption: encoded.select([row]) for row, caption in enumerate(batch)}
            for caption in captions:
                if caption not in conditioning:
                    conditioning[caption] = self._encode(caption)
        return [conditioning[caption] for caption in captions]

    def _encode(self, caption: ReadCaption) -> Conditioning:
        if isinstance(caption, str):
            return self.family.encode_prompts([caption])
        images = list(map(_load_reference, caption.images))
        return cast(FamilyThatSees, self.family).encode_with_images([caption.text], images)

    def _has_one_chunk(self, caption: str) -> bool:
        limit = self.family.spec.text.chunk_tokens
        return self.captions_at_once > 1 and self.family.count_tokens(caption) <= limit


def _load_reference(image: LoadableImage) -> torch.Tensor:
    """Return a reference image that is read with a caption. Raises DarkroomError if it cannot be decoded."""
    try:
        return image.load_tensor()
    except (OSError, ValueError, SyntaxError) as error:
        raise DarkroomError(
            f"The reference image {image.path} cannot be decoded ({plain_reason(error)}).",
            advice="Repair the file, or remove it together with its image.",
        ) from error


@contextmanager
def in_float32(modules: list[nn.Module]) -> Iterator[None]:
    """Convert the 16-bit weights of modules to float32 within this context; afterwards the same tensors are back."""
    tensors = [t for m in modules for t in (*m.parameters(), *m.buffers())]
    kept = [(t, t.data) for t in tensors if t.is_floating_point() and t.dtype.itemsize == 2]
    for tensor, data in kept:
        tensor.data = data.float()
    try:
        yield
    finally:
        for tensor, data in kept:
            tensor.data = data
