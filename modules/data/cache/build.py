"""Building the caches: generators that encode images and captions, so that the caller can stop at any batch.

Existing entries are not rebuilt; an interrupted build resumes where it stopped. Several runs may fill a cache at the
same time (`claims.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

import torch

from modules.data.buckets import Size
from modules.data.cache.claims import Claims, JobType, brief_pause
from modules.data.cache.digests import DigestedFile
from modules.data.cache.store import EntryStore
from modules.data.captions.seen import ReadCaption
from modules.data.images import BrokenImageError
from modules.data.transforms.apply import Pixels, load_pixels
from modules.data.transforms.recipe import Recipe
from modules.system.file_errors import plain_reason

EncodeImages = Callable[[torch.Tensor], torch.Tensor]


class LoadableImage(Protocol):
    """An image that can be loaded as a tensor: the file that messages name, and its recipe."""

    @property
    def path(self) -> Path: ...

    @property
    def recipe(self) -> Recipe: ...

    def load_tensor(self) -> torch.Tensor:
        """Return the image in [-1, 1], float32 (3, P, P), or the frames of a clip, (3, F, P, P)."""
        ...


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A version of an image: its file and its recipe."""

    path: Path
    recipe: Recipe

    def load_tensor(self) -> torch.Tensor:
        """Return the image in [-1, 1], float32 (3, P, P)."""
        return to_tensor(load_pixels(self.path, self.recipe))


@dataclass(frozen=True, slots=True)
class EncodingJob:
    """An image to encode, the key of its latents, and the files that the key was made from."""

    key: str
    image: LoadableImage
    files: tuple[DigestedFile, ...] = ()

    def load_tensor(self) -> torch.Tensor:
        """Return the image as a tensor. Raises what loading it raises, and OSError if a file has changed."""
        image_3PP = self.image.load_tensor()
        for file in self.files:
            file.require_unchanged()
        return image_3PP


@dataclass(frozen=True, slots=True)
class EntryResult:
    """The result of one entry. `problem` explains why it could not be built; then there is no entry.

    `in_float32` is set if the latents were not finite in the VAE's dtype, and the image was encoded in float32;
    `is_found` if another run has stored the entry meanwhile.
    """

    key: str
    path: Path | None = None
    problem: str = ""
    in_float32: bool = False
    is_found: bool = False


@dataclass(frozen=True, slots=True)
class _ImageBatch:
    """A batch for the encoder: the images that could be decoded, and the ones that could not."""

    jobs: tuple[EncodingJob, ...]
    images_B3PP: torch.Tensor | None
    broken: tuple[_EncodedImage, ...]


@dataclass(frozen=True, slots=True)
class _EncodedImage:
    job: EncodingJob
    latents_CHW: torch.Tensor | None
    problem: str = ""
    in_float32: bool = False


def missing_images(jobs: Iterable[EncodingJob], store: EntryStore) -> list[EncodingJob]:
    """Return the jobs without an entry, each key once, in order."""
    return list({j.key: j for j in jobs if not store.has(j.key)}.values())


def batches_by_bucket(jobs: Iterable[EncodingJob], batch_size: int) -> Iterator[tuple[EncodingJob, ...]]:
    """Yield the jobs in batches of one bucket each: a batch once it is full, at the end those that are not.

    No more jobs are taken than a batch needs.
    """
    by_bucket: dict[Size, list[EncodingJob]] = {}
    for job in jobs:
        waiting = by_bucket.setdefault(job.image.recipe.bucket, [])
        waiting.append(job)
        if len(waiting) == batch_size:
            yield tuple(waiting)
            waiting.clear()
    yield from (tuple(rest) for rest in by_bucket.values() if rest)


def build_images(
    jobs: Iterable[EncodingJob],
    store: EntryStore,
    encode: EncodeImages,
    *,
    threads: int,
    batch_size: int = 1,
    encode_in_float32: EncodeImages | None = None,
    stage: Callable[[torch.Tensor], torch.Tensor] = lambda images_B3PP: images_B3PP,
    pause: Callable[[], None] = brief_pause,
) -> Generator[EntryResult, None, None]:
    """Encode images and store their latents, yielding after each entry, in batches of one bucket.

    `jobs` may be an iterator: it is read only as far as files are decoded ahead of the encoder, `threads` at a time.
    `encode` takes images (B, 3, P, P) in [-1, 1] and returns latents; `stage` prepares each batch for it on another
    thread. Entries are written on a third: when the build is closed, the batch after the one that was yielded may be
    stored already. Images whose latents are not finite are encoded again by `encode_in_float32`. An image that cannot
    be decoded, or still has no finite latents, is reported.
    `pause` is called while the last entries are being built by other runs, and may raise to stop.
    """
    with (
        Claims[EncodingJob](store, pause) as claims,
        ThreadPoolExecutor(threads, thread_name_prefix="darkroom-decode") as decoders,
        ThreadPoolExecutor(1, thread_name_prefix="darkroom-stage") as stager,
        ThreadPoolExecutor(1, thread_name_prefix="darkroom-cache") as writer,
    ):

        def submit(batch: tuple[EncodingJob, ...]) -> Future[_ImageBatch]:
            return stager.submit(_stage, batch, [decoders.submit(job.load_tensor) for job in batch], stage)

        def build(some: Iterable[EncodingJob]) -> Iterator[EntryResult]:
            writing: Future[list[EntryResult]] | None = None
            batches = claims.of(batches_by_bucket(some, batch_size))
            for staged in _ahead(batches, submit, max(2 * threads, batch_size)):
                encoded = _encode(staged.result(), encode, encode_in_float32)
                former, writing = writing, writer.submit(_write_batch, encoded, store, claims)
                if former is not None:
                    yield from former.result()
                yield from found_by(claims)
            if writing is not None:
                yield from writing.result()
            yield from found_by(claims)

        try:
            for some in claims.rounds(jobs):
                yield from build(some)
        finally:
            decoders.shutdown(wait=False, cancel_futures=True)


def found_by(claims: Claims[JobType]) -> Iterator[EntryResult]:
    """Return the entries that other runs have built since the last call."""
    return (EntryResult(key, is_found=True) for key in claims.take_found())


def _stage(
    jobs: Sequence[EncodingJob],
    decoding: Sequence[Future[torch.Tensor]],
    stage: Callable[[torch.Tensor], torch.Tensor],
) -> _ImageBatch:
    """Wait for the images of a batch and stack them; undecodable ones are left out."""
    ready: list[EncodingJob] = []
    images: list[torch.Tensor] = []
    broken: list[_EncodedImage] = []
    for job, future in zip(jobs, decoding, strict=True):
        try:
            images.append(future.result())
            ready.append(job)
        except (OSError, ValueError, SyntaxError) as error:
            broken.append(_EncodedImage(job, None, problem_of(job.image.path, error)))
    return _ImageBatch(tuple(ready), stage(torch.stack(images)) if images else None, tuple(broken))


def problem_of(path: Path | None, error: Exception) -> str:
    """Return why a file could not be decoded, as the beginning of a sentence."""
    if isinstance(error, BrokenImageError):
        return f"{path}: {error.reason}"
    return f"{path} cannot be used ({plain_reason(error)})"


def _encode(batch: _ImageBatch, encode: EncodeImages, encode_in_float32: EncodeImages | None) -> list[_EncodedImage]:
    """Encode a batch; images without finite latents once more in float32."""
    done = list(batch.broken)
    if batch.images_B3PP is None:
        return done
    latents_BCHW = encode(batch.images_B3PP)
    for index, (job, latents_CHW) in enumerate(zip(batch.jobs, latents_BCHW, strict=True)):
        in_float32 = encode_in_float32 is not None and not bool(latents_CHW.isfinite().all())
        if encode_in_float32 is not None and in_float32:
            again_1CHW = encode_in_float32(batch.images_B3PP[index : index + 1])
            latents_CHW = again_1CHW[0].to(latents_CHW.dtype)
        if bool(latents_CHW.isfinite().all()):
            done.append(_EncodedImage(job, latents_CHW, in_float32=in_float32))
        else:
            done.append(_EncodedImage(job, None, f"{job.image.path} gives NaN or infinite latents"))
    return done


def _write_batch(batch: Sequence[_EncodedImage], store: EntryStore, claims: Claims[EncodingJob]) -> list[EntryResult]:
    built = []
    for entry in batch:
        if entry.latents_CHW is not None:
            store.write(entry.job.key, {"latents": entry.latents_CHW})
        claims.release([entry.job.key])
        built.append(EntryResult(entry.job.key, entry.job.image.path, entry.problem, entry.in_float32))
    return built


@dataclass(frozen=True, slots=True)
class _CaptionJob:
    """A caption to encode, the images that are read with it being loaded, and the key of its entry."""

    key: str
    caption: ReadCaption


def build_captions(
    captions: Mapping[str, ReadCaption],
    store: EntryStore,
    encode: Callable[[Sequence[ReadCaption]], Sequence[Mapping[str, torch.Tensor]]],
    *,
    batch_size: int = 1,
    threads: int = 1,
    pause: Callable[[], None] = brief_pause,
) -> Generator[EntryResult, None, None]:
    """Encode captions (by key) that have no entry yet, yielding after each once its batch is stored.

    `threads` load the images that are read with captions ahead. `pause` is as in `build_images`.
    """
    with (
        Claims[_CaptionJob](store, pause) as claims,
        ThreadPoolExecutor(threads, thread_name_prefix="darkroom-decode") as decoders,
    ):

        def loading(key: str) -> _CaptionJob:
            caption = captions[key]
            if isinstance(caption, str):
                return _CaptionJob(key, caption)
            images = tuple(_LoadingImage(image, decoders.submit(image.load_tensor)) for image in caption.images)
            return _CaptionJob(key, replace(caption, images=images))

        missing = (loading(key) for key in captions if not store.has(key))
        try:
            for jobs in claims.rounds(missing):
                for batch in claims.of(_batches_ahead(iter(jobs), batch_size, num_ahead=threads)):
                    for job, tensors in zip(batch, encode([job.caption for job in batch]), strict=True):
                        store.write(job.key, tensors)
                        claims.release([job.key])
                    yield from (EntryResult(job.key) for job in batch)
                    yield from found_by(claims)
                yield from found_by(claims)
        finally:
            decoders.shutdown(wait=False, cancel_futures=True)


def _batches_ahead(jobs: Iterator[_CaptionJob], batch_size: int, *, num_ahead: int) -> Iterator[list[_CaptionJob]]:
    """Yield jobs in batches; some are taken ahead of them."""
    waiting = deque(islice(jobs, num_ahead))
    while waiting:
        waiting.extend(islice(jobs, batch_size))
        yield [waiting.popleft() for _ in range(min(batch_size, len(waiting)))]


@dataclass(frozen=True, slots=True)
class _LoadingImage:
    """An image that another thread loads."""

    image: LoadableImage
    tensor: Future[torch.Tensor]

    @property
    def path(self) -> Path:
        """Its file."""
        return self.image.path

    @property
    def recipe(self) -> Recipe:
        """Its recipe."""
        return self.image.recipe

    def load_tensor(self) -> torch.Tensor:
        """Wait for the image. Raises what loading it has raised."""
        return self.tensor.result()


def to_tensor(pixels_PP3: Pixels) -> torch.Tensor:
    """Return pixels as a tensor in [-1, 1], float32 (3, P, P); pixels of frames, (F, P, P, 3), as (3, F, P, P)."""
    return torch.from_numpy(pixels_PP3.copy()).movedim(-1, 0).float() / 127.5 - 1.0


def _ahead(
    source: Iterator[tuple[EncodingJob, ...]],
    submit: Callable[[tuple[EncodingJob, ...]], Future[_ImageBatch]],
    num_images: int,
) -> Iterator[Future[_ImageBatch]]:
    """Yield each batch as it is being staged, at least `num_images` images of later ones submitted ahead."""
    waiting: list[tuple[int, Future[_ImageBatch]]] = []

    def fill() -> None:
        while sum(count for count, _ in waiting) < num_images and (batch := next(source, None)) is not None:
            waiting.append((len(batch), submit(batch)))

    try:
        fill()
        while waiting:
            _, staged = waiting.pop(0)
            fill()
            yield staged
    finally:
        for _, staged in waiting:
            staged.cancel()
