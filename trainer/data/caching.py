"""The caching phase: encodes images and captions before the first step, with progress; can stop after any batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import torch

from modules.data.cache.build import EncodingJob, EntryResult, ImageFile, build_captions, build_images, missing_images
from modules.data.cache.inputs import Place
from modules.data.cache.key import DigestIndex, caption_key, image_key
from modules.data.cache.masks import MaskFile, build_masks
from modules.data.cache.store import CacheStore, EntryStore, MemoryStore, RememberingStore
from modules.data.inputs import ModelInput
from modules.data.versions import ImageVersions, RejectedVersions
from modules.memory.placement import Placement
from modules.system.devices import CPU, move
from modules.system.errors import DarkroomError
from modules.system.problem import count
from trainer import phases
from trainer.commands import CommandDesk, StopAgreed, StopRequested
from trainer.data.encoders import Encoders
from trainer.events import CacheFilled, CacheProgress, Event, PhaseChanged, WarningRaised
from trainer.ranks import ALONE, Ranks

Emit = Callable[[Event], None]
ImageJobs = dict[Place, EncodingJob]
"""The encoding jobs of images by example, resolution and variation."""
_MAX_NAMED = 5
_MAX_FILES = 20
_MOST_REMEMBERED_BYTES = 64 * 2**20  # of each cache: the latents of 1,000 images at 512 px, or 200 captions of SDXL


@dataclass(frozen=True, slots=True)
class EncoderIdentities:
    """The identities of the encoders in cache keys: their weights, dtypes and settings."""

    images: str
    captions: str

    def stored_in(self, dtype: str) -> EncoderIdentities:
        """Return the identities of entries that are kept in another dtype than their encoder's."""
        return EncoderIdentities(f"{self.images}|kept in {dtype}", f"{self.captions}|kept in {dtype}")

    def with_words(self, words: str) -> EncoderIdentities:
        """Return the identities with `words`, the identity of embeddings that are not trained; unchanged without it."""
        return EncoderIdentities(self.images, f"{self.captions}|{words}") if words else self


@dataclass(frozen=True, eq=False)
class Stores:
    """The entries of a run, and the digests of its files: in a folder, or in memory. Masks keep their dtype."""

    latents: EntryStore
    text: EntryStore
    masks: EntryStore
    digests: DigestIndex
    is_on_disk: bool = False

    @classmethod
    def of(cls, cache_dir: Path | None, dtype: torch.dtype | None) -> Stores:
        """Return the stores in a cache folder, or in memory without one; entries are kept in `dtype`, if given."""
        if cache_dir is None:
            return cls(MemoryStore(dtype), MemoryStore(dtype), MemoryStore(None), DigestIndex(None))
        return cls(
            RememberingStore(CacheStore(cache_dir / "latents", dtype), most_bytes=_MOST_REMEMBERED_BYTES),
            RememberingStore(CacheStore(cache_dir / "text", dtype), most_bytes=_MOST_REMEMBERED_BYTES),
            CacheStore(cache_dir / "masks"),
            DigestIndex(cache_dir),
            is_on_disk=True,
        )


@dataclass(frozen=True, eq=False)
class Caches:
    """The latent cache and the text cache of a run, and how to fill them. `used` are the keys that the run uses.

    Of several processes each fills its share of the caches on disk; in memory each has caches of its own.
    """

    stores: Stores
    identities: EncoderIdentities
    encoders: Encoders
    placement: Placement
    desk: CommandDesk
    emit: Emit
    used: set[str] = field(default_factory=set)
    ranks: Ranks = ALONE

    def image_jobs(self, versions: ImageVersions | RejectedVersions, *, verify: bool) -> ImageJobs:
        """Return the encoding jobs by example, resolution and variation.

        New and changed files are read for their digest.
        """
        jobs = image_jobs(
            versions, self.stores.digests, encoder=self.identities.images, verify=verify, check=self.desk.check
        )
        self.used.update(job.key for job in jobs.values())
        return jobs

    def build_latents(self, *sides: ImageJobs, threads: int) -> frozenset[int]:
        """Encode the missing images; of pairs, `sides` are the jobs of the chosen and of the rejected images.

        Returns the numbers of examples that cannot be used, and warns about them.
        """
        jobs = [item for side in sides for item in side.items()]
        broken = {b.key for b in self._encode([job for _, job in jobs], "images", threads=threads) if b.problem}
        return frozenset(number for (number, *_), job in jobs if job.key in broken)

    def build_input(self, record: ModelInput, jobs: Collection[EncodingJob], *, threads: int) -> None:
        """Encode the missing images of an input of the model. Raises DarkroomError for one that cannot be used."""
        self.used.update(job.key for job in jobs)
        label = record.label.lower()
        self._encode(jobs, f"{label}s", threads=threads, needed_label=label)

    def _encode(
        self, jobs: Collection[EncodingJob], what: str, *, threads: int, needed_label: str = ""
    ) -> list[EntryResult]:
        """Encode the missing ones of images and report it.

        With `needed_label`, which names one of them, a broken image ends the run.
        """
        store = self.stores.latents
        by_key = {job.key: job for job in jobs}
        todo, share = self._share_of([job.key for job in missing_images(jobs, store)])
        built: list[EntryResult] = []
        if todo:
            self.emit(PhaseChanged("caching", f"encoding {what}"))
            with self.placement.phase(phases.CACHE_IMAGES):
                build = build_images(
                    [by_key[key] for key in share],
                    store,
                    self.encoders.latents,
                    threads=threads,
                    batch_size=self.encoders.batch_size,
                    encode_in_float32=self.encoders.latents_in_float32,
                    stage=self.encoders.pin_for_gpu,
                )
                built = self._drive(build, what, len(share))
        if needed_label and (problem := next((b.problem for b in built if b.problem), "")):
            raise DarkroomError(
                f"The {needed_label} {problem}.", advice="Repair the file, or remove it together with its image."
            )
        self._report(built)
        self._report_size(what, {job.key for job in jobs}, len(todo), store)
        return built

    def build_masks(self, files: Mapping[str, MaskFile], *, threads: int) -> None:
        """Store the missing masks, by key. Raises DarkroomError for one that cannot be decoded."""
        store = self.stores.masks
        self.used.update(files)
        todo, share = self._share_of([key for key in files if not store.has(key)])
        if not todo:
            return
        self.emit(PhaseChanged("caching", "reading masks"))
        build = build_masks([(key, files[key]) for key in share], store, threads=threads)
        broken = self._drive(build, "masks", len(share))
        if broken:
            raise DarkroomError(
                f"The mask {broken[0].problem}.", advice="Repair the file, or remove it together with its image."
            )

    def build_text(self, captions: set[str]) -> None:
        """Encode the missing captions. Equal captions share one entry."""
        store = self.stores.text
        by_key = {self.caption_key(c): c for c in sorted(captions)}
        self.used.update(by_key)
        todo, share = self._share_of([key for key in by_key if not store.has(key)])
        if todo:
            self.emit(PhaseChanged("caching", "encoding captions"))
            with self.placement.phase(phases.CACHE_CAPTIONS):
                build = build_captions({key: by_key[key] for key in share}, store, self._caption_tensors)
                self._drive(build, "captions", len(share))
        self._report_size("captions", by_key.keys(), len(todo), store)

    def caption_key(self, caption: str) -> str:
        """Return the key of a caption's entry."""
        return caption_key(caption=caption, encoder=self.identities.captions)

    def rebuild_latents(self, job: EncodingJob) -> torch.Tensor:
        """Encode an image again whose cache entry is broken; returns its latents (C, H, W)."""
        self.emit(WarningRaised(f"The cache entry of {job.image.path.name} was damaged. The image is encoded again."))
        self.stores.latents.remove(job.key)
        with self.placement.phase(phases.CACHE_IMAGES):
            image_13PP = job.image.load_tensor()[None]
            latents_1CHW = self.encoders.latents(image_13PP)
            if not bool(latents_1CHW.isfinite().all()):
                latents_1CHW = self.encoders.latents_in_float32(image_13PP).to(latents_1CHW.dtype)
        return self.stores.latents.write(job.key, {"latents": latents_1CHW[0]})["latents"]

    def rebuild_text(self, caption: str) -> dict[str, torch.Tensor]:
        """Encode a caption again whose cache entry is broken."""
        self.emit(WarningRaised("The cache entry of a caption was damaged. The caption is encoded again."))
        key = self.caption_key(caption)
        self.stores.text.remove(key)
        with self.placement.phase(phases.CACHE_CAPTIONS):
            tensors = self._caption_tensors(caption)
        return self.stores.text.write(key, tensors)

    def _caption_tensors(self, caption: str) -> dict[str, torch.Tensor]:
        return {n: move(t, CPU) for n, t in self.encoders.caption(caption).tensors().items()}

    @property
    def _is_shared(self) -> bool:
        return self.stores.is_on_disk and not self.ranks.rank.is_alone

    def _share_of(self, missing: list[str]) -> tuple[list[str], list[str]]:
        """Return the keys of all missing entries and those that this process builds.

        The main process decides which are missing: another one may look when the first entries are already written.
        """
        if not self._is_shared:
            return missing, missing
        missing, rank = self.ranks.from_main(missing), self.ranks.rank
        return missing, missing[rank.index :: rank.world_size]

    def _drive(self, build: Generator[EntryResult, None, None], what: str, total: int) -> list[EntryResult]:
        """Run the build of a share and wait for the other processes; returns the entries that need a warning, of all.

        Raises StopRequested once the run is to stop; of several processes in all of them.
        """
        if not self._is_shared:
            return self._drive_own(build, what, total)
        notable, is_stopped = list[EntryResult](), False
        try:
            notable = self._drive_own(build, what, total)
        except StopRequested:
            is_stopped = True
            self.ranks.announce_stop()
        found = self.ranks.gather((notable, is_stopped))
        if any(stopped for _, stopped in found):
            raise StopAgreed
        return [entry for entries, _ in found for entry in entries]

    def _drive_own(self, build: Generator[EntryResult, None, None], what: str, total: int) -> list[EntryResult]:
        """Run a build to completion and report its progress; returns the entries that need a warning."""
        notable: list[EntryResult] = []
        start = time.monotonic()
        with closing(build):  # a stop waits for entries that are being written
            for done, entry in enumerate(build, start=1):
                if entry.problem or entry.in_float32:
                    notable.append(entry)
                seconds_left = (time.monotonic() - start) / done * (total - done)
                self.emit(CacheProgress(what, done, total, seconds_left))
                self.desk.check()
                if self.ranks.is_stop_announced():
                    raise StopRequested
        return notable

    def _report(self, built: list[EntryResult]) -> None:
        problems = [b.problem for b in built if b.problem]
        for problem in problems[:_MAX_NAMED]:
            self.emit(WarningRaised(f"{problem}; it is left out."))
        if len(problems) > _MAX_NAMED:
            more = count(len(problems) - _MAX_NAMED, "more image is", "more images are")
            self.emit(WarningRaised(f"{more} left out for similar reasons."))
        overflowed = [str(b.path) for b in built if b.in_float32 and not b.problem]
        if overflowed:
            self.emit(overflow_warning(overflowed))

    def _report_size(self, what: str, keys: Iterable[str], num_built: int, store: EntryStore) -> None:
        sizes = [store.num_bytes(key) for key in keys]
        if sizes:
            self.emit(CacheFilled(what, len(sizes), len(sizes) - num_built, sum(sizes)))


def image_jobs(
    versions: ImageVersions | RejectedVersions,
    digests: DigestIndex,
    *,
    encoder: str,
    verify: bool,
    check: Callable[[], None],
) -> ImageJobs:
    """Return the encoding jobs of a dataset's images by example, resolution and variation.

    `encoder` is the identity of the VAE; `check` is called for each image and may raise to stop.
    """
    by_example: list[str] = []
    for example in versions.dataset.examples:
        check()
        path, size_bytes, mtime_ns = example.image.path, example.image.size_bytes, example.image.mtime_ns
        by_example.append(digests.digest(path, size_bytes=size_bytes, mtime_ns=mtime_ns, verify=verify))
    digests.save()
    jobs: ImageJobs = {}
    for version in versions.all_versions():
        image = versions.dataset.examples[version.example].image
        key = image_key(
            digest=by_example[version.example],
            width_px=image.width_px,
            height_px=image.height_px,
            recipe=version.recipe,
            encoder=encoder,
        )
        jobs[version.place] = EncodingJob(key, ImageFile(image.path, version.recipe))
    return jobs


def overflow_warning(files: list[str]) -> WarningRaised:
    """Return the warning about images that a 16-bit VAE cannot encode."""
    more = f" and {len(files) - _MAX_FILES} more" if len(files) > _MAX_FILES else ""
    return WarningRaised(
        f"The VAE gives NaN or infinite latents for {', '.join(files[:_MAX_FILES])}{more}. "
        "They were encoded again in float32.",
        "Set the VAE's weight dtype to float32 or bfloat16: some VAEs overflow in float16.",
    )
