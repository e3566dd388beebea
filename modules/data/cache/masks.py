"""Masks at the size of the latents, and their cache entries. Masks are read from files alone: no model is needed."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from modules.data.buckets import LatentFactor, Size
from modules.data.cache.build import EntryResult, problem_of
from modules.data.cache.digests import DigestedFile
from modules.data.cache.store import EntryStore
from modules.data.example import Example
from modules.data.transforms.apply import load_mask
from modules.data.transforms.masks import Mask, random_inpainting_mask
from modules.data.transforms.recipe import Recipe


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


def build_masks(
    files: Sequence[tuple[str, MaskFile]], store: EntryStore, *, threads: int
) -> Generator[EntryResult, None, None]:
    """Store the masks of these keys, yielding after each; one that cannot be decoded is reported."""
    with ThreadPoolExecutor(threads, thread_name_prefix="darkroom-masks") as pool:
        for key, problem in pool.map(lambda entry: (entry[0], _try_to_store(entry[0], entry[1], store)), files):
            yield EntryResult(key, problem=problem)


def store_mask(key: str, file: MaskFile, store: EntryStore) -> torch.Tensor:
    """Store a mask and return it as it is kept. Raises what loading it raises, and OSError if its file has changed."""
    mask = file.load()
    if file.digested is not None:
        file.digested.require_unchanged()
    return store.write(key, {"mask": mask})["mask"]


def _try_to_store(key: str, file: MaskFile, store: EntryStore) -> str:
    try:
        store_mask(key, file, store)
    except (OSError, ValueError, SyntaxError) as error:
        return problem_of(file.path, error)
    return ""
