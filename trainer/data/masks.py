"""The masks of a batch and the weights that follow from them: read on a loader thread, or from their cache.

The keys of the cache are here, too, and the function that fills it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from modules.data.buckets import LatentFactor
from modules.data.cache.digests import DigestedFile, DigestIndex
from modules.data.cache.key import mask_key
from modules.data.cache.masks import MaskFile, mask_file, store_mask
from modules.data.cache.store import BrokenEntryError, EntryStore
from modules.data.dataset import Dataset
from modules.data.samples import SampleIndex
from modules.data.versions import ImageVersion, ImageVersions
from modules.objectives.denoise import area_weights, preservation_weights
from modules.system.devices import Device, move_async
from modules.system.seeds import derive_seed
from trainer.data.caching import Caches
from trainer.events import WarningRaised

KeyedFiles = dict[tuple[int, int, int], tuple[str, MaskFile]]
"""The masks of images with their keys, by example, resolution and variation."""


@dataclass(frozen=True, slots=True)
class MaskRules:
    """The rules by which masks weigh the loss.

    Each use of an image ignores its mask with the probability `unmasked_probability`.
    `preservation_weight` weighs the errors against the original model's prediction in the unmasked area.
    """

    unmasked_weight: float
    normalises: bool
    unmasked_probability: float = 0.0
    preservation_weight: float = 0.0


@dataclass(frozen=True, eq=False)
class BatchMasks:
    """The masks of a batch and the weights that follow from them, each (B, 1, H, W) on the training device.

    `prior_weights_B1HW` is None where the original model's prediction is not needed.
    """

    masks_B1HW: torch.Tensor
    area_weights_B1HW: torch.Tensor
    prior_weights_B1HW: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class MaskCache:
    """Entries of masks by version. A broken one is read from its file again by `rebuild`."""

    store: EntryStore
    keys: Mapping[tuple[int, int, int], str]
    rebuild: Callable[[str, MaskFile], torch.Tensor]


@dataclass(frozen=True, eq=False)
class MaskReader:
    """Reads the masks of versions of images: from the cache if it has them, else from `file_of(version)`."""

    file_of: Callable[[ImageVersion], MaskFile]
    cache: MaskCache | None = None

    def read(self, version: ImageVersion) -> torch.Tensor | None:
        """Return a mask, float32 (1, H, W), or None if its entry is broken. Raises OSError for an unreadable file."""
        key = self.cache.keys.get(version.place) if self.cache else None
        if self.cache is None or key is None:
            return self.file_of(version).load()
        try:
            return self.cache.store.read(key)["mask"]
        except (BrokenEntryError, KeyError):
            return None

    def rebuild(self, version: ImageVersion) -> torch.Tensor:
        """Return a mask whose entry is broken, read from its file again."""
        assert self.cache is not None, "only a cache has broken entries"
        return self.cache.rebuild(self.cache.keys[version.place], self.file_of(version))


@dataclass(frozen=True, eq=False)
class MaskSource:
    """Delivers the masks of versions of images, from the cache if there is one."""

    dataset: Dataset
    device: Device
    rules: MaskRules
    latent_factor: LatentFactor
    run_seed: int
    cache: MaskCache | None = None

    @cached_property
    def _reader(self) -> MaskReader:
        return MaskReader(self._file, self.cache)

    def prepare(self, version: ImageVersion) -> torch.Tensor | None:
        """Return a mask, float32 (1, H, W), or None if its entry is broken. Raises OSError for an unreadable file."""
        return self._reader.read(version)

    def deliver(
        self,
        versions: Sequence[ImageVersion],
        prepared: Sequence[torch.Tensor | None],
        samples: Sequence[SampleIndex],
    ) -> BatchMasks:
        """Return the masks of samples, and their weights, on the training device."""
        masks = [self._reader.rebuild(v) if p is None else p for v, p in zip(versions, prepared, strict=True)]
        probability = self.rules.unmasked_probability
        ignored = [ignores_mask(self.run_seed, sample, probability=probability) for sample in samples]
        on_cpu = torch.stack([torch.ones_like(m) if i else m for m, i in zip(masks, ignored, strict=True)])
        masks_B1HW, rules = move_async(on_cpu, self.device), self.rules
        prior_weights_B1HW = None
        if rules.preservation_weight and bool((on_cpu < 1).any()):
            prior_weights_B1HW = preservation_weights(
                masks_B1HW,
                unmasked_weight=rules.unmasked_weight,
                weight=rules.preservation_weight,
                normalises=rules.normalises,
            )
        weights_B1HW = area_weights(masks_B1HW, unmasked_weight=rules.unmasked_weight, normalises=rules.normalises)
        return BatchMasks(masks_B1HW, weights_B1HW, prior_weights_B1HW)

    def _file(self, version: ImageVersion) -> MaskFile:
        return mask_file(self.dataset.examples[version.example], version.recipe, self.latent_factor)


def ignores_mask(run_seed: int, sample: SampleIndex, *, probability: float) -> bool:
    """Return whether a use of an image ignores its mask: a function of the run's seed and the sample."""
    seed = derive_seed(run_seed, "unmasked", sample.epoch, sample.example, sample.repeat, sample.resolution)
    return random.Random(seed).random() < probability


def mask_files(
    versions: ImageVersions,
    digests: DigestIndex,
    *,
    latent_factor: LatentFactor,
    verify: bool,
    check: Callable[[], None],
    threads: int = 1,
) -> KeyedFiles:
    """Return the masks of the images that have one, with their keys, by example, resolution and variation.

    New and changed files are read for their digest, by `threads`. `check` is called for each and may raise to stop.
    """
    by_example: dict[int, str] = {}
    masks = {n: e.mask for n, e in enumerate(versions.dataset.examples) if e.mask is not None}
    for is_alpha in (False, True):  # opacity is part of the image, which is verified already
        of_kind = {n: mask for n, mask in masks.items() if mask.is_alpha == is_alpha}
        results = digests.digests(of_kind.values(), threads=threads, verify=verify and not is_alpha)
        with closing(results):
            for number, digest in zip(of_kind, results, strict=True):
                check()
                by_example[number] = digest
    files: KeyedFiles = {}
    for version in versions.all_versions():
        if version.example in by_example:
            file = mask_file(versions.dataset.examples[version.example], version.recipe, latent_factor)
            key = mask_key(
                digest=by_example[version.example],
                width_px=file.image_size.width_px,
                height_px=file.image_size.height_px,
                is_alpha=file.is_alpha,
                recipe=version.recipe,
                latent_factor=latent_factor,
            )
            digested = DigestedFile(masks[version.example], by_example[version.example])
            files[version.place] = key, replace(file, digested=digested)
    return files


def cached_masks(versions: ImageVersions, caches: Caches, *, verify: bool, threads: int) -> MaskCache:
    """Fill the cache with the masks of a dataset. Raises DarkroomError for one that cannot be decoded."""
    store = caches.stores.masks
    files = mask_files(
        versions,
        caches.stores.digests,
        latent_factor=caches.encoders.family.spec.latents.factor,
        verify=verify,
        check=caches.desk.check,
        threads=threads,
    )
    caches.build_masks(dict(files.values()), threads=threads)

    def rebuild(key: str, file: MaskFile) -> torch.Tensor:
        caches.emit(WarningRaised("The cache entry of a mask was damaged. The mask is read again."))
        store.remove(key)
        return store_mask(key, file, store)

    return MaskCache(store, {place: key for place, (key, _) in files.items()}, rebuild)
