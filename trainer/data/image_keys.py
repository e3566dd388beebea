"""The cache keys of a dataset's images, and the search for missing entries, image by image ahead of the encoder."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from modules.data.cache.build import EncodingJob, ImageFile
from modules.data.cache.digests import DigestedFile, DigestIndex
from modules.data.cache.key import keys_of_size
from modules.data.cache.shards import KEY_BYTES
from modules.data.cache.store import EntryStore
from modules.data.cache.version_keys import VersionKeys
from modules.data.example import Example
from modules.data.versions import ImageVersion, ImageVersions, RejectedVersions
from modules.system.errors import DarkroomError
from modules.system.file_errors import describe_file_error

_AT_ONCE = 5000  # images


@dataclass(frozen=True, slots=True)
class ToEncode:
    """Examples that may lack cache entries: their numbers, and how many entries each of them lacks.

    All entries of an image whose digest is not known yet count as missing.
    """

    numbers: Sequence[int]
    num_missing: Sequence[int]

    @property
    def total(self) -> int:
        """The number of missing entries."""
        return sum(self.num_missing)

    def share(self, index: int, world_size: int) -> ToEncode:
        """Return the share of one of several processes."""
        return ToEncode(self.numbers[index::world_size], self.num_missing[index::world_size])


@dataclass(eq=False)
class ImageKeys:
    """The keys of all versions of a dataset's images; new and changed files are read for their digest.

    `encoder` is the identity of the VAE. With `verify` all files are read. `check` is called often and may raise to
    stop.
    """

    versions: ImageVersions | RejectedVersions
    digests: DigestIndex
    encoder: str
    verify: bool
    check: Callable[[], None]
    keys: VersionKeys = field(init=False)
    _keys_of_size: dict[tuple[int, int, int, int, bool], list[Callable[[str], bytes]]] = field(init=False)

    def __post_init__(self) -> None:
        self.keys = self.versions.no_keys()
        self._keys_of_size = {}

    def job_of(self, version: ImageVersion, digest: str = "") -> EncodingJob:
        """Return the encoding job of a version whose key is known, with the digest of its file, if that is at hand."""
        file = DigestedFile(self.versions.dataset.examples[version.example].image, digest)
        return EncodingJob(self.keys[version.place], self._image(version), (file,))

    def find_missing(self, store: EntryStore, taken: set[bytes]) -> ToEncode:
        """Set the keys of all images whose digest is known, without reading a file.

        Returns the examples that must be looked at again. The keys of missing entries are added to `taken`; entries
        that are in it already do not count.
        """
        numbers, counts = array("q"), array("q")
        examples = self.versions.dataset.examples
        for first in range(0, len(examples), _AT_ONCE):
            self.check()
            some = examples[first : first + _AT_ONCE]
            known = [None] * len(some) if self.verify else self.digests.known_digests([e.image for e in some])
            keys_NK, num_keys = self.keys.of_examples(first, first + len(some))
            numbered = zip(range(first, first + len(some)), some, known, num_keys, strict=True)
            of_each = (
                bytes(KEY_BYTES * n) if d is None else self._keys_of(number, e, d) for number, e, d, n in numbered
            )
            self.keys.set_some(first, first + len(some), b"".join(of_each))  # one by one takes far longer
            rows = np.flatnonzero(store.sizes(keys_NK) == 0).tolist()
            ends, missing = list(accumulate(num_keys)), Counter[int]()
            for row in rows:
                key, place = keys_NK[row].tobytes(), bisect_right(ends, row)
                if known[place] is None or key not in taken:
                    missing[first + place] += 1
                    taken.add(key)
            numbers.extend(missing)
            counts.extend(missing.values())
        return ToEncode(numbers, counts)

    def read(self, numbers: Iterable[int], *, threads: int) -> Iterator[tuple[int, str]]:
        """Set the keys of examples and yield their numbers and digests, in order. `threads` read files ahead.

        Raises DarkroomError for a file that is gone or cannot be read any more.
        """
        ordered = list(numbers)
        files = (self.versions.dataset.examples[n].image for n in ordered)
        with closing(self.digests.digests(files, threads=threads, verify=self.verify)) as digests:
            try:
                for number, digest in zip(ordered, digests, strict=True):
                    self.check()
                    self._set(number, digest)
                    yield number, digest
            except OSError as error:  # not left out: it may be a drive with all other images
                raise DarkroomError(
                    f"{describe_file_error(error)[0]} It was there when the images were listed.",
                    advice="Start again to train on the images that are there now. What was encoded is kept.",
                ) from error

    def set_read(self, digests: Mapping[int, str]) -> None:
        """Set the keys of examples whose files another process has read; it saves their digests."""
        for number, digest in digests.items():
            self._set(number, digest)

    def read_all(self) -> VersionKeys:
        """Set and return the keys of all images."""
        for _ in self.read(range(len(self.versions.dataset.examples)), threads=1):
            pass
        return self.keys

    def without(self, broken: frozenset[int], versions: ImageVersions) -> ImageKeys:
        """Return the keys without broken examples; `versions` are the versions of the others, numbered anew."""
        is_rejected = isinstance(self.versions, RejectedVersions)
        left = replace(self, versions=RejectedVersions(versions) if is_rejected else versions)
        left.keys = self.keys.without(broken)
        return left

    def jobs_of(self, number: int, digest: str) -> Iterator[EncodingJob]:
        """Yield the encoding jobs of an example whose keys are known, and the digest of its file."""
        return (self.job_of(version, digest) for version in self.versions.versions_of(number))

    def _set(self, number: int, digest: str) -> None:
        self.keys.set_all(number, self._keys_of(number, self.versions.dataset.examples[number], digest))

    def _keys_of(self, number: int, example: Example, digest: str) -> bytes:
        """Return the keys of all versions of an example, one after the other."""
        if not self.versions.share_recipe(example):
            return b"".join(make(digest) for make in self._key_makers(number, example))
        image = example.image
        has_background = example.background is not None
        alike = (example.concept, image.width_px, image.height_px, image.num_frames, has_background)
        makers = self._keys_of_size.get(alike)
        if makers is None:
            makers = self._keys_of_size[alike] = self._key_makers(number, example)
        return makers[0](digest) if len(makers) == 1 else b"".join(make(digest) for make in makers)

    def _key_makers(self, number: int, example: Example) -> list[Callable[[str], bytes]]:
        """Return a function from the digest to the key for each version of an example."""
        size = {"width_px": example.image.width_px, "height_px": example.image.height_px}
        versions = self.versions.versions_of(number)
        return [keys_of_size(**size, recipe=version.recipe, encoder=self.encoder) for version in versions]

    def _image(self, version: ImageVersion) -> ImageFile:
        return ImageFile(self.versions.dataset.examples[version.example].image.path, version.recipe)


@dataclass(eq=False)
class MissingImages:
    """The encoding jobs of the missing entries of shares of several datasets; each key once.

    Files are read for their digests as the jobs are taken. `total` corrects itself: what turned out to have an entry is
    subtracted.
    """

    sides: Sequence[ImageKeys]
    shares: Sequence[ToEncode]
    store: EntryStore
    threads: int
    total: int = field(init=False)
    digests: list[dict[int, str]] = field(init=False)

    def __post_init__(self) -> None:
        self.total = sum(share.total for share in self.shares)
        self.digests = [{} for _ in self.sides]

    def __iter__(self) -> Iterator[EncodingJob]:
        taken: set[str] = set()
        for side, share, digests in zip(self.sides, self.shares, self.digests, strict=True):
            expected = dict(zip(share.numbers, share.num_missing, strict=True))
            for number, digest in side.read(share.numbers, threads=self.threads):
                digests[number] = digest
                jobs = {job.key: job for job in side.jobs_of(number, digest) if job.key not in taken}
                missing = [job for key, job in jobs.items() if not self.store.has(key)]
                taken.update(job.key for job in missing)
                self.total += len(missing) - expected[number]
                yield from missing
