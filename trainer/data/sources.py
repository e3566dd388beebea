"""The sources of a batch's latents, masks and text embeddings: a cache, or the files and the encoders themselves.

A source has two methods. `prepare` does the work without a model (reading, decoding) and runs on a loader thread, ahead
of time; `deliver` runs on the training thread and returns the result on the training device in the training dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from modules.data.cache.build import to_tensor
from modules.data.cache.store import BrokenEntryError, CacheStore
from modules.data.conditioning import Conditioning, DeliveredConditioning, PartialConditioning
from modules.data.dataset import Dataset
from modules.data.transforms.apply import Pixels, load_pixels
from modules.data.versions import ImageVersion
from modules.families.protocol import ModelFamily
from modules.system.devices import Device, move

Prepared = torch.Tensor | None


class LatentSource(Protocol):
    """Delivers the latents of versions of images."""

    def prepare(self, version: ImageVersion) -> Prepared:
        """Return the data that needs no model, or None if the image or its entry is broken."""
        ...

    def deliver(self, versions: Sequence[ImageVersion], prepared: Sequence[Prepared]) -> torch.Tensor:
        """Return the latents of versions of one size, (B, C, H, W)."""
        ...


class ConditioningSource(Protocol):
    """Delivers the text embeddings of captions."""

    def deliver(self, captions: Sequence[str]) -> DeliveredConditioning:
        """Return the conditioning of captions, in their order, without those that the training step encodes itself."""
        ...


class FixedConditioning(Protocol):
    """Delivers the text embeddings of captions whose encoding does not change during a run."""

    def deliver(self, captions: Sequence[str]) -> Conditioning:
        """Return the conditioning of captions, in their order."""
        ...


@dataclass(frozen=True, eq=False)
class CachedLatents:
    """Latents from the cache. A broken entry is encoded again by `rebuild`."""

    store: CacheStore
    keys: Mapping[tuple[int, int, int], str]
    device: Device
    dtype: torch.dtype
    rebuild: Callable[[ImageVersion], torch.Tensor]

    def prepare(self, version: ImageVersion) -> Prepared:
        """Read an entry; None if it is broken."""
        try:
            return self.store.read(self.keys[version.place])["latents"]
        except (BrokenEntryError, KeyError):
            return None

    def deliver(self, versions: Sequence[ImageVersion], prepared: Sequence[Prepared]) -> torch.Tensor:
        """Stack the entries and move them to the device together."""
        latents = [self.rebuild(v) if p is None else p for v, p in zip(versions, prepared, strict=True)]
        return move(torch.stack(latents), self.device, dtype=self.dtype)


@dataclass(frozen=True, eq=False)
class EncodedLatents:
    """Latents encoded at each use. `prepare` raises for an image that cannot be decoded."""

    dataset: Dataset
    family: ModelFamily
    device: Device
    dtype: torch.dtype

    def prepare(self, version: ImageVersion) -> Prepared:
        """Decode an image and apply its recipe."""
        pixels: Pixels = load_pixels(self.dataset.examples[version.example].image.path, version.recipe)
        return to_tensor(pixels)

    def deliver(self, versions: Sequence[ImageVersion], prepared: Sequence[Prepared]) -> torch.Tensor:
        """Encode the images."""
        images = torch.stack([p for p in prepared if p is not None])
        with torch.no_grad():
            latents_BCHW = self.family.encode_images(move(images, self.device))
        return latents_BCHW.to(self.dtype)


@dataclass(frozen=True, eq=False)
class CachedConditioning:
    """Text embeddings from the cache; a broken entry is encoded again by `rebuild`."""

    store: CacheStore
    key_of: Callable[[str], str]
    family: ModelFamily
    device: Device
    dtype: torch.dtype
    rebuild: Callable[[str], Mapping[str, torch.Tensor]]

    def deliver(self, captions: Sequence[str]) -> Conditioning:
        """Read the entries, pad the shorter ones, and move them to the device together."""
        joined = self.family.join([self._read(c) for c in captions], self._read(""))
        return joined.to(self.device, self.dtype)

    def _read(self, caption: str) -> Conditioning:
        try:
            tensors: Mapping[str, torch.Tensor] = self.store.read(self.key_of(caption))
        except BrokenEntryError:
            tensors = self.rebuild(caption)
        return self.family.conditioning_from(tensors)


@dataclass(frozen=True, eq=False)
class EncodedConditioning:
    """Text embeddings of encoders that are not trained, encoded at each use; one caption at a time, like the cache."""

    family: ModelFamily
    encode: Callable[[str], Conditioning]
    device: Device
    dtype: torch.dtype

    def deliver(self, captions: Sequence[str]) -> Conditioning:
        """Encode the captions."""
        joined = self.family.join([self.encode(c) for c in captions], self.encode(""))
        return joined.to(self.device, self.dtype)


@dataclass(frozen=True, eq=False)
class ConditioningByCaption:
    """Text embeddings of a batch: for each caption from `fixed`, or left to the training step.

    `is_cacheable(caption)` distinguishes the two (`caption_is_cacheable`). A batch of one kind is delivered exactly as
    if the other kind did not exist. In a mixed batch fewer captions are encoded together, which changes the last bits:
    fp32 by 1e-6, bf16 by 4e-3.
    """

    is_cacheable: Callable[[str], bool]
    fixed: FixedConditioning

    def deliver(self, captions: Sequence[str]) -> DeliveredConditioning:
        """Return the conditioning of captions, in their order, without those that the training step encodes."""
        are_cacheable = [self.is_cacheable(c) for c in captions]
        if all(are_cacheable):
            return self.fixed.deliver(captions)
        if not any(are_cacheable):
            return None
        entries = [
            self.fixed.deliver([c]) if in_cache else None for c, in_cache in zip(captions, are_cacheable, strict=True)
        ]
        return PartialConditioning(entries, self.fixed.deliver([""]))
