"""The sources of a batch's latents, masks and text embeddings: a cache, or the files and the encoders themselves.

A source has two methods. `prepare` does the work without a model (reading, decoding, joining) and runs on a loader
thread, ahead of time; `deliver` runs on the training thread and returns the result on the training device in the
training dtype. A GPU copies what is delivered from pinned memory, without waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from modules.data.cache.build import LoadableImage
from modules.data.cache.store import BrokenEntryError, EntryStore
from modules.data.captions.seen import ReadCaption, text_of
from modules.data.conditioning import Conditioning, DeliveredConditioning, PartialConditioning
from modules.data.versions import ImageVersion
from modules.families.protocol import ModelFamily
from modules.families.spec import LatentSpec
from modules.system.devices import CPU, Device, move, move_async, pin
from trainer.data.encoders import Encoders

Prepared = torch.Tensor | None
PreparedTexts = Conditioning | None  # on the CPU, in the training dtype


class LatentSource(Protocol):
    """Delivers the latents of versions of images, or their values of another input of the model."""

    def prepare(self, version: ImageVersion) -> Prepared:
        """Return the data that needs no model, or None if the image or its entry is broken."""
        ...

    def deliver(self, versions: Sequence[ImageVersion], prepared: Sequence[Prepared]) -> torch.Tensor:
        """Return the latents of versions of one size, (B, C, H, W), or of clips, (B, C, F, H, W)."""
        ...


class ConditioningSource(Protocol):
    """Delivers the text embeddings of captions."""

    def prepare(self, captions: Sequence[ReadCaption]) -> PreparedTexts:
        """Return the embeddings that can be read ahead of time; None if there are none, or an entry is broken."""
        ...

    def deliver(self, captions: Sequence[ReadCaption], prepared: PreparedTexts = None) -> DeliveredConditioning:
        """Return the conditioning of captions, in their order, without those that the training step encodes itself."""
        ...


class FixedConditioning(Protocol):
    """Delivers the text embeddings of captions whose encoding does not change during a run."""

    def prepare(self, captions: Sequence[ReadCaption]) -> PreparedTexts:
        """Return the embeddings that can be read ahead of time; None if there are none, or an entry is broken."""
        ...

    def deliver(self, captions: Sequence[ReadCaption], prepared: PreparedTexts = None) -> Conditioning:
        """Return the conditioning of captions, in their order."""
        ...


@dataclass(frozen=True, eq=False)
class CachedLatents:
    """Latents from the cache. A broken entry is encoded again by `rebuild`."""

    store: EntryStore
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
        return move_async(torch.stack(latents).to(self.dtype), self.device)


@dataclass(frozen=True, eq=False)
class EncodedLatents:
    """Latents of `image_of(version)`, encoded at each use. `prepare` raises for an image that cannot be decoded.

    Images whose latents are not finite in a 16-bit VAE are encoded again in float32; `warn` gets their files.
    """

    image_of: Callable[[ImageVersion], LoadableImage]
    encoders: Encoders
    device: Device
    dtype: torch.dtype
    warn: Callable[[list[str]], None]

    def prepare(self, version: ImageVersion) -> Prepared:
        """Decode an image and apply its recipe."""
        return self.image_of(version).load_tensor()

    def deliver(self, versions: Sequence[ImageVersion], prepared: Sequence[Prepared]) -> torch.Tensor:
        """Encode the images."""
        images_B3PP = self.encoders.pin_for_gpu(torch.stack([p for p in prepared if p is not None]))
        latents_BCHW = self.encoders.encode(images_B3PP)
        if latents_BCHW.dtype.itemsize == 2:
            latents_BCHW = self._finite(latents_BCHW, images_B3PP, versions)
        return latents_BCHW.to(self.dtype)

    def _finite(
        self, latents_BCHW: torch.Tensor, images_B3PP: torch.Tensor, versions: Sequence[ImageVersion]
    ) -> torch.Tensor:
        overflowed = [i for i, latents in enumerate(latents_BCHW) if not bool(latents.isfinite().all())]
        for index in overflowed:
            again = self.encoders.latents_in_float32(images_B3PP[index : index + 1])
            latents_BCHW[index] = move(again[0], self.device, dtype=latents_BCHW.dtype)
        if overflowed:
            self.warn([str(self.image_of(versions[i]).path) for i in overflowed])
        return latents_BCHW


@dataclass(frozen=True, eq=False)
class LoadedImages:
    """The tensors of `image_of(version)`, loaded at each use: images for a method that trains on pixels, or depth maps.

    `prepare` raises for an image that cannot be decoded.
    """

    image_of: Callable[[ImageVersion], LoadableImage]
    device: Device
    dtype: torch.dtype

    def prepare(self, version: ImageVersion) -> Prepared:
        """Decode an image and apply its recipe."""
        return self.image_of(version).load_tensor()

    def deliver(self, versions: Sequence[ImageVersion], prepared: Sequence[Prepared]) -> torch.Tensor:
        """Stack the tensors and move them to the device together, (B, ...)."""
        images = [p for p in prepared if p is not None]
        return move_async(torch.stack(images).to(self.dtype), self.device)


@dataclass(frozen=True, eq=False)
class BlankLatents:
    """Zeros in the shape of the latents, for a method that only uses the size of an image and reads none.

    `latents` are the family's.
    """

    latents: LatentSpec
    device: Device
    dtype: torch.dtype

    def prepare(self, version: ImageVersion) -> Prepared:
        """Return None: nothing is read."""

    def deliver(self, versions: Sequence[ImageVersion], prepared: Sequence[Prepared]) -> torch.Tensor:
        """Return zeros in the versions' size."""
        bucket = versions[0].recipe.bucket
        shape = len(versions), *self.latents.shape(bucket.width_px, bucket.height_px, bucket.num_frames)
        return torch.zeros(shape, dtype=self.dtype, device=self.device.torch)


@dataclass(frozen=True, slots=True)
class NoConditioning:
    """No text embeddings, for a method that uses no captions."""

    def prepare(self, captions: Sequence[ReadCaption]) -> PreparedTexts:
        """Return None: nothing is read."""

    def deliver(self, captions: Sequence[ReadCaption], prepared: PreparedTexts = None) -> DeliveredConditioning:
        """Return None: nothing is encoded."""
        return None


@dataclass(frozen=True, eq=False)
class CachedConditioning:
    """Text embeddings from the cache; a broken entry is encoded again by `rebuild`."""

    store: EntryStore
    key_of: Callable[[ReadCaption], str]
    family: ModelFamily
    device: Device
    dtype: torch.dtype
    rebuild: Callable[[ReadCaption], Mapping[str, torch.Tensor]]

    def prepare(self, captions: Sequence[ReadCaption]) -> PreparedTexts:
        """Read the entries and pad the shorter ones; None if one is broken."""
        try:
            return self._join(captions, self._from_store)
        except BrokenEntryError:
            return None

    def deliver(self, captions: Sequence[ReadCaption], prepared: PreparedTexts = None) -> Conditioning:
        """Move the entries to the device together; broken ones are encoded again."""
        joined = self._join(captions, self._read) if prepared is None else prepared
        return joined.to(self.device)

    def _join(
        self, captions: Sequence[ReadCaption], read: Callable[[ReadCaption], Mapping[str, torch.Tensor]]
    ) -> Conditioning:
        """Return the entries of captions as one, ready to be moved: in the training dtype, and pinned for a GPU."""
        entries = {c: self.family.conditioning_from(read(c)) for c in dict.fromkeys((*captions, ""))}
        joined = self.family.join([entries[c] for c in captions], entries[""]).to(CPU, self.dtype)
        return self.family.conditioning_from({n: pin(t, self.device) for n, t in joined.tensors().items()})

    def _from_store(self, caption: ReadCaption) -> Mapping[str, torch.Tensor]:
        return self.store.read(self.key_of(caption))

    def _read(self, caption: ReadCaption) -> Mapping[str, torch.Tensor]:
        try:
            return self._from_store(caption)
        except BrokenEntryError:
            return self.rebuild(caption)


@dataclass(frozen=True, eq=False)
class EncodedConditioning:
    """Text embeddings of encoders that are not trained, encoded at each use, each caption like for the cache."""

    family: ModelFamily
    encode: Callable[[Sequence[ReadCaption]], Sequence[Conditioning]]
    device: Device
    dtype: torch.dtype

    def prepare(self, captions: Sequence[ReadCaption]) -> PreparedTexts:
        """Return None: encoding needs the model."""

    def deliver(self, captions: Sequence[ReadCaption], prepared: PreparedTexts = None) -> Conditioning:
        """Encode the captions."""
        *encoded, empty = self.encode([*captions, ""])
        joined = self.family.join(encoded, empty)
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

    def prepare(self, captions: Sequence[ReadCaption]) -> PreparedTexts:
        """Read captions ahead of time, if the training step encodes none of them."""
        return self.fixed.prepare(captions) if all(map(self.is_cacheable, map(text_of, captions))) else None

    def deliver(self, captions: Sequence[ReadCaption], prepared: PreparedTexts = None) -> DeliveredConditioning:
        """Return the conditioning of captions, in their order, without those that the training step encodes."""
        are_cacheable = [self.is_cacheable(text_of(c)) for c in captions]
        if all(are_cacheable):
            return self.fixed.deliver(captions, prepared)
        if not any(are_cacheable):
            return None
        entries = [
            self.fixed.deliver([c]) if in_cache else None for c, in_cache in zip(captions, are_cacheable, strict=True)
        ]
        return PartialConditioning(entries, self.fixed.deliver([""]))
