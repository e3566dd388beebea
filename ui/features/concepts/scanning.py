"""Scans of the concepts' folders: one at a time in the background, kept until files or settings change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from modules.data.cache.image_index import ImageIndex
from modules.data.captions.sources import CaptionOrigin
from modules.data.concept import Concept
from modules.data.dataset import scan_concept
from modules.data.hub import HUB_SCHEME
from modules.data.pairs import fingerprint_of_source
from modules.data.scan import Scan, image_index
from modules.system.paths import from_root
from ui.loop.background import Background, Job, Report
from ui.loop.signal import Signal, notify

Key = tuple[str, bool, CaptionOrigin, str, str]
Result = Scan | str  # a scan, or the reason for its failure
STOPPED = "not scanned"
NUM_CARD_IMAGES = 4
_MAX_KEYS = 10_000
_REPORT_AFTER_SECONDS = 0.3  # many small folders
_ENCODING_FAULTS = ("utf-16", "cp1252", "latin-1")


@dataclass(frozen=True, slots=True)
class ScanFacts:
    """The facts of a scan that a card shows. `first` are some of its images, spread over all."""

    num_images: int
    num_captioned: int
    num_skipped: int
    num_wrongly_encoded: int
    first: tuple[Path, ...]
    num_excluded: int = 0


@dataclass(frozen=True, slots=True)
class ScanProgress:
    """The scan that is running: its folder, its images so far and all of them, and the number of folders to scan."""

    folder: str
    done: int
    total: int
    num_left: int


@dataclass(frozen=True, slots=True)
class _ScanRecord:
    result: Result
    facts: ScanFacts | None = None
    fingerprint: str = ""


class Scans:
    """Scans by folder, depth, origin of captions, type, and excluded images. Those preferred last come first."""

    def __init__(self, background: Background) -> None:
        self.progressed: Signal[[]] = Signal()
        self.progress: ScanProgress | None = None
        self._background = background
        self._records: dict[Key, _ScanRecord] = {}
        self._outdated: set[Key] = set()
        self._overtaken: set[Key] = set()  # whose files may have changed during their scan
        self._index = image_index(None)  # so that scanning again opens new and changed images only
        self._waiting: dict[Key, tuple[Concept, list[Callable[[], None]]]] = {}
        self._running: tuple[Key, Job] | None = None
        self._busy_since = 0.0
        self._keys: dict[int, tuple[Concept, Key]] = {}
        self._current: set[Key] = set()

    def of(self, concept: Concept) -> Result | None:
        """Return the scan of a concept, or None while it is unknown."""
        record = self._records.get(self._key(concept))
        return record.result if record else None

    def facts_of(self, concept: Concept) -> ScanFacts | None:
        """Return the facts of a concept's scan; None while it is unknown, or failed."""
        record = self._records.get(self._key(concept))
        return record.facts if record else None

    def want(self, concept: Concept, done: Callable[[], None]) -> None:
        """Scan a concept's folder unless already done; `done` is called with the result."""
        key = self._key(concept)
        if key in self._records and key not in self._outdated:
            return
        self._waiting.setdefault(key, (concept, []))[1].append(done)
        self._start_next()

    def prefer(self, concepts: Iterable[Concept]) -> None:
        """Scan these before the others that are waiting."""
        first = {key: self._waiting[key] for c in concepts if (key := self._key(c)) in self._waiting}
        if first:
            self._waiting = first | {k: w for k, w in self._waiting.items() if k not in first}

    def keep_only(self, concepts: Iterable[Concept]) -> None:
        """Cancel the scans of all other concepts, such as the scan of a path that was being typed."""
        self._current = keys = {self._key(c) for c in concepts}
        self._waiting = {key: waiting for key, waiting in self._waiting.items() if key in keys}
        if self._running is not None and self._running[0] not in keys:
            self._running[1].cancel()
            self._running = None
            self._start_next()
        if not self._waiting and self.progress is not None:
            self._report(None)

    def forget(self) -> None:
        """Compare all folders with their scans at the next request; the results stay until then."""
        self._outdated |= self._records.keys()
        self._outdated -= self._waiting.keys()
        if self._running is not None:
            self._overtaken.add(self._running[0])

    def stop(self) -> None:
        """Stop scanning; folders without a result are marked as not scanned, until the next `forget`."""
        if self._running is not None:
            self._running[1].cancel()
            self._running = None
        waiting, self._waiting = self._waiting, {}
        for key, (_, callbacks) in waiting.items():
            self._records.setdefault(key, _ScanRecord(STOPPED))
            self._outdated.discard(key)
            for done in callbacks:
                notify(done)
        self._report(None)

    @property
    def is_stopped(self) -> bool:
        """Whether a folder was left out because scanning was stopped."""
        return any(record.result == STOPPED for record in self._records.values())

    def _key(self, concept: Concept) -> Key:
        """Return the key of a concept; concepts do not change, so it is made once for each."""
        entry = self._keys.get(id(concept))
        if entry is None or entry[0] is not concept:
            if len(self._keys) > _MAX_KEYS:
                self._keys.clear()
            key = (
                concept.path.strip(),
                concept.include_subfolders,
                concept.caption_origin,
                concept.kind,
                concept.excluded,
            )
            self._keys[id(concept)] = entry = (concept, key)
        return entry[1]

    def _start_next(self) -> None:
        if self._running is not None or not self._waiting:
            return
        key, (concept, _) = next(iter(self._waiting.items()))
        record = self._records.get(key)
        if self.progress is None and len(self._waiting) == 1:
            self._busy_since = time.perf_counter()
        elif time.perf_counter() - self._busy_since > _REPORT_AFTER_SECONDS:
            self._report_progress(concept, "", 0, 0)
        job = self._background.run_reporting(
            partial(_scan, concept, self._index, record),
            partial(self._keep, key),
            partial(self._report_failure, key),
            progress=partial(self._report_progress, concept),
        )
        self._running = (key, job)

    def _report_progress(self, concept: Concept, _what: str, done: int, total: int) -> None:
        self._report(ScanProgress(concept.label, done, total, len(self._waiting)))

    def _report(self, progress: ScanProgress | None) -> None:
        self.progress = progress
        self.progressed()

    def _report_failure(self, key: Key, error: Exception) -> None:
        self._keep(key, _ScanRecord("cannot be scanned"))
        raise error  # reported by the window

    def _keep(self, key: Key, record: _ScanRecord) -> None:
        for old in [k for k in self._records if k[:-1] == key[:-1] and k not in self._current]:
            del self._records[old]  # with other images excluded: a scan of a large folder takes much memory
        self._records[key] = record
        self._outdated.discard(key)
        self._running = None
        concept, callbacks = self._waiting.pop(key, (None, []))
        if key in self._overtaken and concept is not None:
            self._waiting[key] = (concept, list(callbacks))  # once more
        self._overtaken.discard(key)
        if not self._waiting:
            self._report(None)
        for done in callbacks:
            notify(done)
        self._start_next()


def _scan(concept: Concept, index: ImageIndex, record: _ScanRecord | None, report: Report) -> _ScanRecord:
    """Return the scan of a concept: the known one if no file has changed since."""
    if not concept.path.strip():
        return _ScanRecord("no folder chosen" if concept.has_images else "no file chosen")
    if concept.path.strip().startswith(HUB_SCHEME):
        return _ScanRecord("on the Hugging Face hub")
    source, report_images = from_root(concept.path.strip()), partial(report, "scanning")
    check = partial(report_images, 0, 0)  # the path that is being typed may be that of a whole disk
    try:
        check()
        file = concept.caption_origin.file
        fingerprint = fingerprint_of_source(
            source,
            include_subfolders=concept.include_subfolders,
            holds_pairs=concept.holds_pairs,
            other_files=() if file is None else (file,),
            check=check,
        )
        if record is not None and record.fingerprint == fingerprint and isinstance(record.result, Scan):
            return record
        scan = scan_concept(concept, source, index=index, watch=report_images, check=check)
    except FileNotFoundError:
        return _ScanRecord("not found")
    except OSError as error:
        return _ScanRecord(error.strerror or "cannot be read")
    return _ScanRecord(scan, _facts(scan), fingerprint)


def _facts(scan: Scan) -> ScanFacts:
    images = scan.images
    step = max(1, len(images) // NUM_CARD_IMAGES)
    return ScanFacts(
        num_images=len(images),
        num_captioned=len(images) - scan.num_without_caption,
        num_skipped=sum(not s.is_normal for s in scan.skipped),
        num_wrongly_encoded=sum(image.caption_fault in _ENCODING_FAULTS for image in images),
        first=tuple(i.path for i in images[::step][:NUM_CARD_IMAGES] if i.has_image),
        num_excluded=len(scan.excluded),
    )
