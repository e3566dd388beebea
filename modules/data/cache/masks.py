"""Masks at the size of the latents, and their cache entries. Masks are read from files alone: no model is needed."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from modules.data.buckets import LatentFactor, Size
from modules.data.cache.build import EntryResult, found_by, problem_of
from modules.data.cache.claims import Claims, brief_pause
from modules.data.cache.digests import DigestedFile
from modules.data.cache.store import EntryStore
from modules.data.example import Example
from modules.data.transforms.apply import load_mask
from modules.data.transforms.masks import Mask, random_inpainting_mask
from modules.data.transforms.recipe import Recipe

_CLAIMED_AT_ONCE = 16  # masks of each thread


@dataclass(frozen=True, slots=True)
class MaskFile:
    """The mask of a version of an image: its file, what happens to it, and the width of a latent in pixels.

    Without a file the image is trained everywhere: its mask is white, or, with a `seed`, a random inpainting mask.
    `digested` is the file of a mask that is cached.
    """

    path: Path | None
    recipe: Recipe
    image_size: Size
    is_alpha: bool
    latent_factor: LatentFactor
    seed: int | None = None
    digested: DigestedFile | None = None

    def load(self) -> torch.Tensor:
        """Return the mask at the size of the latents, float32 (1, H, W) in [0, 1]; of a clip's frames, (1, 1, H, W).

        Raises OSError, ValueError or SyntaxError for a file that cannot be decoded.
        """
        bucket = self.recipe.bucket
        size = (bucket.height_px // self.latent_factor, bucket.width_px // self.latent_factor)
        is_white = self.path is None and self.seed is None
        mask_1HW = torch.ones(1, *size) if is_white else at_latents(self.load_pixels(), size)
        return mask_1HW if bucket.num_frames == 1 else mask_1HW[:, None]

    def load_pixels(self) -> Mask:
        """Return the mask of a file or a seed at the size of the bucket, uint8 (P, P). Raises as `load` does."""
        if self.path is not None:
            return load_mask(self.path, self.recipe, image_size=self.image_size, is_alpha=self.is_alpha)
        assert self.seed is not None, "an image without a mask that is white everywhere"
        return random_inpainting_mask(self.recipe.bucket, random.Random(self.seed))


def mask_file(example: Example, recipe: Recipe, latent_factor: LatentFactor) -> MaskFile:
    """Return the mask of a version of an example."""
    size = example.image.size
    if example.mask is None:
        return MaskFile(None, recipe, size, False, latent_factor)
    return MaskFile(example.mask.path, recipe, size, example.mask.is_alpha, latent_factor)


def at_latents(mask_PP: Mask, size: tuple[int, int]) -> torch.Tensor:
    """Return a mask of uint8 pixels, (P, P), at the size (H, W) of the latents: float32 (1, H, W) in [0, 1].

    Each element is the mean of the pixels it covers, as its latent describes all of them.
    """
    pixels_1PP = torch.from_numpy(mask_PP.copy())[None].float() / 255
    return torch.nn.functional.adaptive_avg_pool2d(pixels_1PP, size)


@dataclass(frozen=True, slots=True)
class MaskJob:
    """A mask to store, and the key of its entry."""

    key: str
    file: MaskFile


def build_masks(
    jobs: Iterable[MaskJob], store: EntryStore, *, threads: int, pause: Callable[[], None] = brief_pause
) -> Generator[EntryResult, None, None]:
    """Store masks, yielding after each; one that cannot be decoded is reported. `pause` is as in `build_images`."""
    with (
        Claims[MaskJob](store, pause) as claims,
        ThreadPoolExecutor(threads, thread_name_prefix="darkroom-masks") as pool,
    ):
        for some in claims.rounds(jobs):
            for batch in claims.of(_batches(iter(some), _CLAIMED_AT_ONCE * threads)):
                for job, problem in zip(batch, pool.map(lambda job: _try_to_store(job, store), batch), strict=True):
                    claims.release([job.key])
                    yield EntryResult(job.key, problem=problem)
                yield from found_by(claims)
            yield from found_by(claims)


def _batches(jobs: Iterator[MaskJob], batch_size: int) -> Iterator[list[MaskJob]]:
    while batch := list(islice(jobs, batch_size)):
        yield batch


def store_mask(key: str, file: MaskFile, store: EntryStore) -> torch.Tensor:
    """Store a mask and return it as it is kept. Raises what loading it raises, and OSError if its file has changed."""
    mask = file.load()
    if file.digested is not None:
        file.digested.require_unchanged()
    return store.write(key, {"mask": mask})["mask"]


def _try_to_store(job: MaskJob, store: EntryStore) -> str:
    try:
        store_mask(job.key, job.file, store)
    except (OSError, ValueError, SyntaxError) as error:
        return problem_of(job.file.path, error)
    return ""
