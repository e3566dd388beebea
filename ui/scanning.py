"""Scans of the concepts' folders, run in the background and kept until the settings change. No Tk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from modules.data.cache.stat_index import StatIndex
from modules.data.captions.sources import CaptionOrigin
from modules.data.concept import Concept
from modules.data.dataset import scan_concept
from modules.data.hub import HUB_SCHEME
from modules.data.scan import Scan, image_index
from modules.system.paths import from_root
from ui.run.background import Background
from ui.signal import notify

Key = tuple[str, bool, CaptionOrigin, str]
Result = Scan | str  # a scan, or the reason for its failure


class Scans:
    """Scans by folder, depth, origin of captions, and concept type."""

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
        self._background.run(partial(_scan, concept, self._index), partial(self._keep, key))

    def forget(self) -> None:
        """Drop all results, so that the next request scans again."""
        self._results.clear()

    def _keep(self, key: Key, result: Result) -> None:
        self._results[key] = result
        for done in self._waiting.pop(key, ()):
            notify(done)


def _key(concept: Concept) -> Key:
    return concept.path.strip(), concept.include_subfolders, concept.caption_origin, concept.kind


def _scan(concept: Concept, index: StatIndex) -> Result:
    if not concept.path.strip():
        return "no folder chosen" if concept.has_images else "no file chosen"
    if concept.path.strip().startswith(HUB_SCHEME):
        return "on the Hugging Face hub"
    try:
        return scan_concept(concept, from_root(concept.path.strip()), index=index)
    except FileNotFoundError:
        return "not found"
    except OSError as error:
        return error.strerror or "cannot be read"
