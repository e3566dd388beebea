"""Building the caches: generators that encode one entry at a time, so that the caller can stop anywhere.

Existing entries are not rebuilt; an interrupted build resumes where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from modules.data.cache.store import CacheStore
from modules.data.transforms.apply import Pixels, load_pixels
from modules.data.transforms.recipe import Recipe


@dataclass(frozen=True, slots=True)
class ImageJob:
    """A version of an image to encode, and the key of its latents."""

    key: str
    path: Path
    recipe: Recipe

    def load(self) -> Pixels:
        """Decode the image and apply its recipe."""
        return load_pixels(self.path, self.recipe)


@dataclass(frozen=True, slots=True)
class Built:
    """One entry is done. `problem` explains why it could not be built; then there is no entry."""

    key: str
    problem: str = ""


def missing_images(jobs: Iterable[ImageJob], store: CacheStore) -> list[ImageJob]:
    """Return the jobs without an entry, each key once, in order."""
    return list({j.key: j for j in jobs if not store.has(j.key)}.values())


def build_images(
    jobs: Sequence[ImageJob],
    store: CacheStore,
    encode: Callable[[torch.Tensor], torch.Tensor],
    *,
    threads: int,
) -> Iterator[Built]:
    """Encode images and store their latents, yielding after each.

    `encode` takes images (1, 3, P, P) in [-1, 1] and returns latents. Files are decoded `threads` at a time, a few
    ahead of the encoder. An image that cannot be decoded, or whose latents are not finite, is reported.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="darkroom-decode") as pool:
        for job, pixels in _ahead(jobs, lambda j: pool.submit(j.load), 2 * threads):
            try:
                latents_1CHW = encode(to_tensor(pixels.result())[None])
            except (OSError, ValueError, SyntaxError) as error:
                yield Built(job.key, f"{job.path} cannot be decoded ({error})")
                continue
            if not bool(latents_1CHW.isfinite().all()):
                yield Built(job.key, f"{job.path} gives NaN or infinite latents")
                continue
            store.write(job.key, {"latents": latents_1CHW[0]})
            yield Built(job.key)


def build_captions(
    captions: Mapping[str, str], store: CacheStore, encode: Callable[[str], dict[str, torch.Tensor]]
) -> Iterator[Built]:
    """Encode captions (by key) that have no entry yet, one at a time, yielding after each."""
    for key, caption in captions.items():
        if not store.has(key):
            store.write(key, encode(caption))
        yield Built(key)


def to_tensor(pixels_PP3: Pixels) -> torch.Tensor:
    """Return pixels as a tensor in [-1, 1], float32 (3, P, P)."""
    return torch.from_numpy(pixels_PP3.copy()).permute(2, 0, 1).float() / 127.5 - 1.0


def _ahead(
    jobs: Sequence[ImageJob], submit: Callable[[ImageJob], Future[Pixels]], count: int
) -> Iterator[tuple[ImageJob, Future[Pixels]]]:
    """Yield each job with its pending result, `count` of them submitted ahead."""
    source = iter(jobs)
    waiting = [(j, submit(j)) for j in islice(source, count)]
    try:
        while waiting:
            yield waiting.pop(0)
            waiting += [(j, submit(j)) for j in islice(source, 1)]
    finally:
        for _, future in waiting:
            future.cancel()
