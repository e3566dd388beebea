"""The caching phase: encodes images and captions before the first step, with progress; can stop after any batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from modules.data.cache.build import EncodingJob, EntryResult, build_captions, build_images, missing_images
from modules.data.cache.claims import brief_pause
from modules.data.cache.digests import DigestIndex
from modules.data.cache.key import caption_key, caption_keys
from modules.data.cache.masks import MaskFile, MaskJob, build_masks
from modules.data.cache.memory import MemoryStore, RememberingStore
from modules.data.cache.shards import KEY_BYTES, Keys
from modules.data.cache.store import ENTRIES_PER_SHARD, CacheStore, EntryStore
from modules.data.cache.version_keys import distinct, numbers_of
from modules.data.captions.seen import ReadCaption
from modules.data.inputs import ModelInput
from modules.data.versions import ImageVersions, RejectedVersions
from modules.memory.placement import Placement
from modules.system.devices import CPU, move
from modules.system.errors import DarkroomError
from modules.system.problem import count, list_first
from modules.system.ranks import ONLY_RANK
from trainer import phases
from trainer.commands import CommandDesk, StopAgreed, StopRequested
from trainer.data.encoders import Encoders
from trainer.data.image_keys import ImageKeys, MissingImages
from trainer.events import CacheFilled, CacheProgress, Event, PhaseChanged, WarningRaised
from trainer.ranks import ALONE, Ranks

T = TypeVar("T")
Emit = Callable[[Event], None]
_MAX_NAMED = 5
_MAX_FILES = 20
_MAX_REMEMBERED_BYTES = 64 * 2**20  # of each cache: the latents of 1,000 images at 512 px, or 200 captions of SDXL


@dataclass(frozen=True, slots=True)
class EncoderIdentities:
    """The identities of the encoders in cache keys: their weights, dtypes and settings."""

    images: str
    captions: str

    def stored_in(self, dtype: str) -> EncoderIdentities:
        """Return the identities of entries that are kept in another dtype than their encoder's."""
        return EncoderIdentities(f"{self.images}|kept in {dtype}", f"{self.captions}|kept in {dtype}")

    def with_embeddings(self, embeddings: str) -> EncoderIdentities:
        """Return the identities with that of embeddings that are not trained, if there are any."""
        return EncoderIdentities(self.images, f"{self.captions}|{embeddings}") if embeddings else self


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
        latents, text, masks = (
            CacheStore(cache_dir / kind, kept_in, entries_per_shard=ENTRIES_PER_SHARD)
            for kind, kept_in in (("latents", dtype), ("text", dtype), ("masks", None))
        )
        return cls(
            RememberingStore(latents, most_bytes=_MAX_REMEMBERED_BYTES),
            RememberingStore(text, most_bytes=_MAX_REMEMBERED_BYTES),
            masks,
            DigestIndex(cache_dir),
            is_on_disk=True,
        )


@dataclass
class BuildResult:
    """The entries of a build that need a warning, and how many it has encoded itself."""

    notable: list[EntryResult] = field(default_factory=list)
    num_encoded: int = 0


@dataclass(frozen=True, eq=False)
class Caches:
    """The latent cache and the text cache of a run, and how to fill them. `used` has the keys that the run uses.

    Of several processes each fills its share of the caches on disk; in memory each has caches of its own.
    """

    stores: Stores
    identities: EncoderIdentities
    encoders: Encoders
    placement: Placement
    desk: CommandDesk
    emit: Emit
    used: list[Keys] = field(default_factory=list)
    ranks: Ranks = ALONE

    def image_keys(self, versions: ImageVersions | RejectedVersions, *, verify: bool) -> ImageKeys:
        """Return the keys of a dataset's images, none of which is known yet. With `verify` all files are read."""
        return ImageKeys(versions, self.stores.digests, self.identities.images, verify, self.desk.check)

    def build_latents(self, *sides: ImageKeys, threads: int) -> frozenset[int]:
        """Encode the missing images; of pairs, `sides` are the chosen and the rejected images.

        Files are read for their digest ahead of the encoder, so a stop keeps what was read and encoded until then.
        Returns the numbers of examples that cannot be used, and warns about them.
        """
        store, taken = self.stores.latents, set[bytes]()
        lacking = [side.find_missing(store, taken) for side in sides]
        del taken
        lacking = self.ranks.from_main(lacking) if self._is_shared else lacking
        built = BuildResult()
        if any(side.numbers for side in lacking):
            rank = self.ranks.rank if self._is_shared else ONLY_RANK
            shares = [todo.share(rank.index, rank.world_size) for todo in lacking]
            missing = MissingImages(sides, shares, store, threads)
            built = self._drive(
                self._encode_images(missing, "images", threads=threads), "images", lambda: missing.total
            )
            if self._is_shared:
                self._merge(missing, sides)
        self._report(built.notable)
        broken = {b.key for b in built.notable if b.problem}
        keys_NK = np.concatenate([side.keys.all_set for side in sides])
        self._report_entries("images", keys_NK, built.num_encoded, store, num_broken=len(broken))
        return frozenset().union(*(side.keys.examples_with(broken) for side in sides))

    def _merge(self, missing: MissingImages, sides: Sequence[ImageKeys]) -> None:
        """Set the keys of the images that other processes have read."""
        for rank, digests in enumerate(self.ranks.gather(missing.digests)):
            if rank != self.ranks.rank.index:
                for side, of_side in zip(sides, digests, strict=True):
                    side.set_read(of_side)

    def build_input(self, record: ModelInput, jobs: Collection[EncodingJob], *, threads: int) -> None:
        """Encode the missing images of an input of the model. Raises DarkroomError for one that cannot be used."""
        label = record.label.lower()
        what, store = f"{label}s", self.stores.latents
        by_key = {job.key: job for job in jobs}
        todo, share = self._share_of([job.key for job in missing_images(jobs, store)])
        built = BuildResult()
        if todo:
            build = self._encode_images((by_key[key] for key in share), what, threads=threads)
            built = self._drive(build, what, lambda: len(share))
        if problem := next((b.problem for b in built.notable if b.problem), ""):
            raise DarkroomError(
                f"The {label} {problem}.", advice="Repair the file, or remove it together with its image."
            )
        self._report(built.notable)
        self._report_entries(what, numbers_of(job.key for job in jobs), built.num_encoded, store)

    def _encode_images(
        self, jobs: Iterable[EncodingJob], what: str, *, threads: int
    ) -> Generator[EntryResult, None, None]:
        """Encode images; the VAE is on the device from the first of them on."""
        waiting = iter(jobs)
        for first in waiting:
            self.emit(PhaseChanged("caching", f"encoding {what}"))
            with self.placement.phase(phases.CACHE_IMAGES):
                yield from build_images(
                    chain([first], waiting),
                    self.stores.latents,
                    self.encoders.latents,
                    threads=threads,
                    batch_size=self.encoders.batch_size,
                    encode_in_float32=self.encoders.latents_in_float32,
                    stage=self.encoders.pin_for_gpu,
                    pause=self._pause_for_others(what),
                )

    def build_masks(self, files: Mapping[str, MaskFile], *, threads: int) -> None:
        """Store the missing masks, by key. Raises DarkroomError for one that cannot be decoded."""
        store = self.stores.masks
        self.used.append(numbers_of(files))
        todo, share = self._share_of([key for key in files if not store.has(key)])
        if not todo:
            return
        self.emit(PhaseChanged("caching", "reading masks"))
        jobs = (MaskJob(key, files[key]) for key in share)
        build = build_masks(jobs, store, threads=threads, pause=self._pause_for_others("masks"))
        broken = self._drive(build, "masks", lambda: len(share)).notable
        if broken:
            raise DarkroomError(
                f"The mask {broken[0].problem}.", advice="Repair the file, or remove it together with its image."
            )

    def build_text(self, captions: Collection[ReadCaption], *, threads: int) -> None:
        """Encode the missing ones of different captions; `threads` load their reference images ahead.

        All processes of a run pass them in the same order.
        """
        store, ordered = self.stores.text, list(captions)
        keys = b"".join(caption_keys(ordered, encoder=self.identities.captions))
        keys_NK = np.frombuffer(keys, np.uint8).reshape(-1, KEY_BYTES)
        todo, share = self._share_of(np.flatnonzero(store.sizes(keys_NK) == 0).tolist())
        built = BuildResult()
        if todo:
            self.emit(PhaseChanged("caching", "encoding captions"))
            with self.placement.phase(phases.CACHE_CAPTIONS):
                missing = {keys_NK[row].tobytes().hex(): ordered[row] for row in share}
                build = build_captions(
                    missing,
                    store,
                    self._tensors_of_captions,
                    batch_size=self.encoders.captions_at_once,
                    threads=threads,
                    pause=self._pause_for_others("captions"),
                )
                built = self._drive(build, "captions", lambda: len(share))
        self._report_entries("captions", keys_NK, built.num_encoded, store)

    def caption_key(self, caption: ReadCaption) -> str:
        """Return the key of a caption's entry."""
        return caption_key(caption=caption, encoder=self.identities.captions)

    def rebuild_latents(self, job: EncodingJob) -> torch.Tensor:
        """Encode an image again whose cache entry is broken; returns its latents (C, H, W)."""
        self.emit(WarningRaised(f"The cache entry of {job.image.path.name} was damaged. The image is encoded again."))
        self.stores.latents.remove(job.key)
        with self.placement.phase(phases.CACHE_IMAGES):
            image_13PP = job.load_tensor()[None]
            latents_1CHW = self.encoders.latents(image_13PP)
            if not bool(latents_1CHW.isfinite().all()):
                latents_1CHW = self.encoders.latents_in_float32(image_13PP).to(latents_1CHW.dtype)
        return self.stores.latents.write(job.key, {"latents": latents_1CHW[0]})["latents"]

    def rebuild_text(self, caption: ReadCaption) -> dict[str, torch.Tensor]:
        """Encode a caption again whose cache entry is broken."""
        self.emit(WarningRaised("The cache entry of a caption was damaged. The caption is encoded again."))
        key = self.caption_key(caption)
        self.stores.text.remove(key)
        with self.placement.phase(phases.CACHE_CAPTIONS):
            [tensors] = self._tensors_of_captions([caption])
        return self.stores.text.write(key, tensors)

    def _tensors_of_captions(self, captions: Sequence[ReadCaption]) -> list[dict[str, torch.Tensor]]:
        encoded = self.encoders.captions(captions)
        return [{n: move(t, CPU) for n, t in conditioning.tensors().items()} for conditioning in encoded]

    @property
    def _is_shared(self) -> bool:
        return self.stores.is_on_disk and not self.ranks.rank.is_alone

    def _share_of(self, missing: list[T]) -> tuple[list[T], list[T]]:
        """Return all missing entries, by their keys or numbers, and those that this process builds.

        The main process decides which are missing: another one may look when the first entries are already written.
        """
        if not self._is_shared:
            return missing, missing
        missing, rank = self.ranks.from_main(missing), self.ranks.rank
        return missing, missing[rank.index :: rank.world_size]

    def _drive(self, build: Generator[EntryResult, None, None], what: str, total: Callable[[], int]) -> BuildResult:
        """Run the build of a share, wait for the other processes, and return what all have built.

        `total` returns the number of entries of the share, as far as it is known.
        Raises StopRequested once the run is to stop; of several processes in all of them.
        """
        if not self._is_shared:
            return self._run_build(build, what, total)
        built, is_stopped = BuildResult(), False
        try:
            built = self._run_build(build, what, total)
        except StopRequested:
            is_stopped = True
            self.ranks.announce_stop()
        gathered = self.ranks.gather((built, is_stopped))
        if any(stopped for _, stopped in gathered):
            raise StopAgreed
        notable = [entry for of_rank, _ in gathered for entry in of_rank.notable]
        return BuildResult(notable, sum(of_rank.num_encoded for of_rank, _ in gathered))

    def _run_build(self, build: Generator[EntryResult, None, None], what: str, total: Callable[[], int]) -> BuildResult:
        """Run a build to completion and report its progress."""
        built = BuildResult()
        start = time.monotonic()
        with closing(build):  # a stop waits for entries that are being written
            for done, entry in enumerate(build, start=1):
                if entry.problem or entry.in_float32:
                    built.notable.append(entry)
                built.num_encoded += not entry.is_found
                num_left = max(0, total() - done)
                seconds_left = (time.monotonic() - start) / done * num_left
                self.emit(CacheProgress(what, done, done + num_left, seconds_left))
                self._check()
        return built

    def _check(self) -> None:
        self.desk.check()
        if self.ranks.is_stop_announced():
            raise StopRequested

    def _pause_for_others(self, what: str) -> Callable[[], None]:
        """Return the function that waits while other runs encode the last entries, and reports that once."""
        reported = list[str]()

        def pause() -> None:
            if not reported:
                reported.append(f"waiting for another run that caches the last {what}")
                self.emit(PhaseChanged("caching", reported[0]))
            self._check()
            brief_pause()

        return pause

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

    def _report_entries(
        self, what: str, keys_NK: Keys, num_built: int, store: EntryStore, *, num_broken: int = 0
    ) -> None:
        """Report the entries with these keys, of which some may occur several times, as those that the run uses.

        Of the `num_built` ones `num_broken` could not be stored.
        """
        used_NK = distinct(keys_NK)
        self.used.append(used_NK)
        if len(used_NK):
            num_bytes = int(store.sizes(used_NK).sum())
            self.emit(CacheFilled(what, len(used_NK) - num_broken, len(used_NK) - num_built, num_bytes))


def overflow_warning(files: list[str]) -> WarningRaised:
    """Return the warning about images that a 16-bit VAE cannot encode."""
    return WarningRaised(
        f"The VAE gives NaN or infinite latents for {list_first(files, _MAX_FILES)}. "
        "They were encoded again in float32.",
        "Set the VAE's weight dtype to float32 or bfloat16: some VAEs overflow in float16.",
    )
