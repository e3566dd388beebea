"""The caching phase: encodes images and captions before the first step, with progress; can stop after any entry."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from modules.data.cache.build import Built, ImageJob, build_captions, build_images, missing_images, to_tensor
from modules.data.cache.key import DigestIndex, caption_key, image_key, mask_key
from modules.data.cache.masks import MaskFile, build_masks, mask_file
from modules.data.cache.store import CacheStore
from modules.data.conditioning import Conditioning
from modules.data.versions import ImageVersions
from modules.families.protocol import ModelFamily
from modules.memory.placement import Placement
from modules.system.devices import CPU, Device, move
from modules.system.errors import DarkroomError
from trainer import phases
from trainer.commands import CommandDesk
from trainer.events import CacheProgress, Event, PhaseChanged, WarningRaised

Emit = Callable[[Event], None]
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class EncoderIdentities:
    """The identities of the encoders in cache keys: their weights, dtypes and settings."""

    images: str
    captions: str


@dataclass(frozen=True, eq=False)
class Encoders:
    """The model's encoders as the caches use them: one entry at a time, under the run's `autocast()`."""

    family: ModelFamily
    device: Device
    autocast: Callable[[], AbstractContextManager[object]]

    def latents(self, image_13PP: torch.Tensor) -> torch.Tensor:
        """Return the latents (1, C, H, W) of one image, on the CPU."""
        with torch.no_grad():
            return move(self.family.encode_images(move(image_13PP, self.device)), CPU)

    def caption(self, caption: str) -> Conditioning:
        """Return the conditioning of one caption, on the training device."""
        with torch.no_grad(), self.autocast():
            return self.family.encode_prompts([caption])


@dataclass(frozen=True, eq=False)
class Caches:
    """The latent cache and the text cache of a run, and how to fill them."""

    cache_dir: Path
    identities: EncoderIdentities
    encoders: Encoders
    placement: Placement
    desk: CommandDesk
    emit: Emit

    @property
    def latent_store(self) -> CacheStore:
        """The cache of latents."""
        return CacheStore(self.cache_dir / "latents")

    @property
    def text_store(self) -> CacheStore:
        """The cache of text embeddings."""
        return CacheStore(self.cache_dir / "text")

    @property
    def mask_store(self) -> CacheStore:
        """The cache of masks."""
        return CacheStore(self.cache_dir / "masks")

    def image_jobs(self, versions: ImageVersions, *, verify: bool) -> dict[tuple[int, int, int], ImageJob]:
        """Return the encoding jobs by example, resolution and variation.

        New and changed files are read for their digest.
        """
        index = DigestIndex(self.cache_dir)
        digests: list[str] = []
        for example in versions.dataset.examples:
            self.desk.check()
            path, size_bytes, mtime_ns = example.image.path, example.image.size_bytes, example.image.mtime_ns
            digests.append(index.digest(path, size_bytes=size_bytes, mtime_ns=mtime_ns, verify=verify))
        index.save()
        jobs: dict[tuple[int, int, int], ImageJob] = {}
        for version in versions.cached():
            image = versions.dataset.examples[version.example].image
            key = image_key(
                digest=digests[version.example],
                width_px=image.width_px,
                height_px=image.height_px,
                recipe=version.recipe,
                encoder=self.identities.images,
            )
            jobs[version.place] = ImageJob(key, image.path, version.recipe)
        return jobs

    def build_latents(self, jobs: Mapping[tuple[int, int, int], ImageJob], *, threads: int) -> frozenset[int]:
        """Encode the missing images. Returns the numbers of examples that cannot be used, and warns about them."""
        todo = missing_images(jobs.values(), self.latent_store)
        problems: dict[str, str] = {}
        if todo:
            self.emit(PhaseChanged("caching", "encoding images"))
            with self.placement.phase(phases.CACHE_IMAGES):
                built = build_images(todo, self.latent_store, self.encoders.latents, threads=threads)
                problems = self._drive(built, "images", len(todo))
        self._report(list(problems.values()))
        return frozenset(number for (number, *_), job in jobs.items() if job.key in problems)

    def mask_files(self, versions: ImageVersions, *, verify: bool) -> dict[tuple[int, int, int], tuple[str, MaskFile]]:
        """Return the masks of the images that have one, with their keys, by example, resolution and variation."""
        index, factor = DigestIndex(self.cache_dir), self.encoders.family.spec.latent_factor
        files: dict[tuple[int, int, int], tuple[str, MaskFile]] = {}
        digests: dict[int, str] = {}
        for number, example in enumerate(versions.dataset.examples):
            self.desk.check()
            if (mask := example.mask) is not None:
                digests[number] = index.digest(
                    mask.path, size_bytes=mask.size_bytes, mtime_ns=mask.mtime_ns, verify=verify and not mask.is_alpha
                )
        index.save()
        for version in versions.cached():
            if version.example in digests:
                file = mask_file(versions.dataset.examples[version.example], version.recipe, factor)
                key = mask_key(
                    digest=digests[version.example],
                    width_px=file.image_size.width_px,
                    height_px=file.image_size.height_px,
                    is_alpha=file.is_alpha,
                    recipe=version.recipe,
                    latent_factor=factor,
                )
                files[version.place] = key, file
        return files

    def build_masks(self, files: Iterable[tuple[str, MaskFile]], *, threads: int) -> None:
        """Read the missing masks. Raises DarkroomError for one that cannot be decoded."""
        todo = [(key, file) for key, file in dict(files).items() if not self.mask_store.has(key)]
        if not todo:
            return
        self.emit(PhaseChanged("caching", "reading masks"))
        problems = self._drive(build_masks(todo, self.mask_store, threads=threads), "masks", len(todo))
        if problems:
            raise DarkroomError(
                f"The mask {next(iter(problems.values()))}.", advice="Repair the file, or remove it with its image."
            )

    def rebuild_mask(self, key: str, file: MaskFile) -> torch.Tensor:
        """Read a mask again whose cache entry is broken; returns it (1, H, W)."""
        self.emit(WarningRaised("The cache entry of a mask was damaged. The mask is read again."))
        self.mask_store.remove(key)
        mask_1HW = file.load()
        self.mask_store.write(key, {"mask": mask_1HW})
        return mask_1HW

    def build_text(self, captions: set[str]) -> None:
        """Encode the missing captions, including the empty one."""
        by_key = {self.caption_key(c): c for c in sorted(captions | {""})}
        missing = {k: c for k, c in by_key.items() if not self.text_store.has(k)}
        if missing:
            self.emit(PhaseChanged("caching", "encoding captions"))
            with self.placement.phase(phases.CACHE_CAPTIONS):
                self._drive(build_captions(missing, self.text_store, self._caption_tensors), "captions", len(missing))

    def caption_key(self, caption: str) -> str:
        """Return the key of a caption's entry."""
        return caption_key(caption=caption, encoder=self.identities.captions)

    def rebuild_latents(self, job: ImageJob) -> torch.Tensor:
        """Encode an image again whose cache entry is broken; returns its latents (C, H, W)."""
        self.emit(WarningRaised(f"The cache entry of {job.path.name} was damaged. The image is encoded again."))
        self.latent_store.remove(job.key)
        with self.placement.phase(phases.CACHE_IMAGES):
            latents_1CHW = self.encoders.latents(to_tensor(job.load())[None])
        self.latent_store.write(job.key, {"latents": latents_1CHW[0]})
        return latents_1CHW[0]

    def rebuild_text(self, caption: str) -> dict[str, torch.Tensor]:
        """Encode a caption again whose cache entry is broken."""
        self.emit(WarningRaised("The cache entry of a caption was damaged. The caption is encoded again."))
        key = self.caption_key(caption)
        self.text_store.remove(key)
        with self.placement.phase(phases.CACHE_CAPTIONS):
            tensors = self._caption_tensors(caption)
        self.text_store.write(key, tensors)
        return tensors

    def _caption_tensors(self, caption: str) -> dict[str, torch.Tensor]:
        return {n: move(t, CPU) for n, t in self.encoders.caption(caption).tensors().items()}

    def _drive(self, built: Iterator[Built], what: str, total: int) -> dict[str, str]:
        """Run a build to completion and report its progress; returns the problems by key."""
        problems: dict[str, str] = {}
        start = time.monotonic()
        for done, entry in enumerate(built, start=1):
            if entry.problem:
                problems[entry.key] = entry.problem
            seconds_left = (time.monotonic() - start) / done * (total - done)
            self.emit(CacheProgress(what, done, total, seconds_left))
            self.desk.check()
        return problems

    def _report(self, problems: list[str]) -> None:
        for problem in problems[:_MAX_NAMED]:
            self.emit(WarningRaised(f"{problem}; it is left out."))
        if len(problems) > _MAX_NAMED:
            self.emit(WarningRaised(f"{len(problems) - _MAX_NAMED} more images are left out for similar reasons."))
