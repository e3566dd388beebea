"""Scans of the concepts' folders, run in the background and kept until the settings change. No Tk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from modules.data.cache.stat_index import StatIndex
from modules.data.captions.sources import CaptionOrigin
from modules.data.concept import Concept
from modules.data.pair_scan import scan_source
from modules.data.scan import Scan, image_index
from modules.system.paths import from_root
from ui.run.background import Background
from ui.signal import notify

Key = tuple[str, bool, CaptionOrigin, bool]
Result = Scan | str  # a scan, or the reason for its failure


class Scans:
    """Scans by folder, depth and origin of captions."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._results: dict[Key, Result] = {}
        self._index = image_index(None)  # so that scanning again opens new and changed images only
        self._waiting: dict[Key, list[Callable[[], None]]] = {}

    def of(self, concept: Concept) -> Result | None:
        """Return the scan of a concept, or None while it is unknown."""
        return self._results.get(_key(concept))

    def want(self, concept: Concept, done: Callable[[], None]) -> None:
        """Scan a concept's folder unless already done; `done` is called with the result."""
        key = _key(concept)
        if key in self._results:
            return
        if key in self._waiting:
            self._waiting[key].append(done)
            return
        self._waiting[key] = [done]
        self._background.run(partial(_scan, key, self._index), partial(self._keep, key))

    def forget(self) -> None:
        """Drop all results, so that the next request scans again."""
        self._results.clear()

    def _keep(self, key: Key, result: Result) -> None:
        self._results[key] = result
        for done in self._waiting.pop(key, ()):
            notify(done)


def _key(concept: Concept) -> Key:
    return concept.path.strip(), concept.include_subfolders, concept.caption_origin, concept.holds_pairs


def _scan(key: Key, index: StatIndex) -> Result:
    path, include_subfolders, captions, holds_pairs = key
    if not path:
        return "no folder chosen"
    try:
        return scan_source(
            from_root(path),
            include_subfolders=include_subfolders,
            captions=captions,
            holds_pairs=holds_pairs,
            index=index,
        )
    except FileNotFoundError:
        return "not found"
    except OSError as error:
        return error.strerror or "cannot be read"
