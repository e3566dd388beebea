"""The cache of masks of a run: their keys, and filling it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from modules.data.cache.key import DigestIndex, mask_key
from modules.data.cache.masks import MaskFile, mask_file
from modules.data.versions import ImageVersions
from trainer.data.caching import Caches
from trainer.data.masks import MaskCache
from trainer.events import WarningRaised

KeyedFiles = dict[tuple[int, int, int], tuple[str, MaskFile]]


def mask_files(
    versions: ImageVersions, digests: DigestIndex, *, latent_factor: int, verify: bool, check: Callable[[], None]
) -> KeyedFiles:
    """Return the masks of the images that have one, with their keys, by example, resolution and variation.

    New and changed files are read for their digest. `check` is called for each image and may raise to stop.
    """
    by_example: dict[int, str] = {}
    for number, example in enumerate(versions.dataset.examples):
        check()
        if (mask := example.mask) is not None:  # opacity is part of the image, which is verified already
            by_example[number] = digests.digest(
                mask.path, size_bytes=mask.size_bytes, mtime_ns=mask.mtime_ns, verify=verify and not mask.is_alpha
            )
    digests.save()
    files: KeyedFiles = {}
    for version in versions.cached():
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
            files[version.place] = key, file
    return files


def cached_masks(versions: ImageVersions, caches: Caches, *, verify: bool, threads: int) -> MaskCache:
    """Fill the cache with the masks of a dataset. Raises DarkroomError for one that cannot be decoded."""
    store = caches.stores.masks
    files = mask_files(
        versions,
        caches.stores.digests,
        latent_factor=caches.encoders.family.spec.latent_factor,
        verify=verify,
        check=caches.desk.check,
    )
    caches.build_masks(dict(files.values()), threads=threads)

    def rebuild(key: str, file: MaskFile) -> torch.Tensor:
        caches.emit(WarningRaised("The cache entry of a mask was damaged. The mask is read again."))
        store.remove(key)
        return store.write(key, {"mask": file.load()})["mask"]

    return MaskCache(store, {place: key for place, (key, _) in files.items()}, rebuild)
