"""The preview of a concept's images as a run sees them: which image and which use is shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from PIL import Image

from modules.config.schema import Config
from modules.data.concept import Concept
from modules.data.scan import Scan
from trainer.data.preview import MAX_USES, ConceptPreview, ImageUse
from ui.features.concepts.scanning import Scans
from ui.loop.background import Background, Job, Report, cancel
from ui.loop.signal import Signal
from ui.widgets.thumbnails import ThumbnailCache

ORIGINAL_PX = 900  # the longest side of the original as it is shown
NUM_CAPTIONS = 12  # of the next uses


@dataclass(frozen=True, slots=True)
class PreviewContent:
    """The content of the preview: one use of an image, the image itself, and the captions of the next uses."""

    seen: ImageUse
    original: Image.Image | None
    num_uses: int
    captions: tuple[str, ...]


class PreviewModel:
    """One use of one image at a time. All work is done in the background; older work is cancelled."""

    def __init__(self, background: Background, scans: Scans, thumbnails: ThumbnailCache) -> None:
        self.changed: Signal[[]] = Signal()
        self.content: PreviewContent | None = None
        self.message = ""  # why nothing is shown
        self.image = 0
        self.use = 0
        self.num_images = 0
        self.is_augmented = True
        self._background, self._scans, self._thumbnails = background, scans, thumbnails
        self._preview: ConceptPreview | None = None
        self._based_on: tuple[Any, ...] = ()
        self._job: Job | None = None

    def follow(self, config: Config, number: int) -> None:
        """Show the concept at a number of a config: everything is computed again if its settings have changed."""
        based_on = (config.concepts, config.data, config.masks, config.general.seed, config.training, config.model)
        if based_on == self._based_on:
            return
        self._based_on = based_on
        scans = self._known_scans(config)
        work = partial(_build, config, number, scans)
        self._cancel()
        self._job = self._background.run_reporting(work, self._keep_preview, self._report_failure)

    def step_image(self, by: int) -> None:
        """Show another image."""
        if self.num_images:
            self.show_image((self.image + by) % self.num_images)

    def show_image(self, image: int) -> None:
        """Show the first use of an image."""
        self.image, self.use = image, 0
        self._show()

    def step_use(self, by: int) -> None:
        """Show another use of the image in the run."""
        last = self.content.num_uses - 1 if self.content is not None else 0
        self.use = min(last, max(0, self.use + by))
        self._show()

    def set_augmented(self, is_augmented: bool) -> None:
        """Show the image with its augmentations, or without."""
        self.is_augmented = is_augmented
        self._show()

    def close(self) -> None:
        """Cancel the work."""
        self._cancel()

    def _known_scans(self, config: Config) -> dict[int, Scan]:
        results = ((id(c), self._scans.of(c)) for c in config.concepts)
        return {key: scan for key, scan in results if isinstance(scan, Scan)}

    def _keep_preview(self, preview: ConceptPreview) -> None:
        self._preview = preview
        self.num_images = len(preview.examples)
        self.image = min(self.image, max(0, self.num_images - 1))
        self._show()

    def _show(self) -> None:
        if self._preview is None:
            return
        if not self.num_images:
            self._fail("There is nothing to show: no image of the concept is used.")
            return
        work = partial(_show, self._preview, self.image, self.use, self._thumbnails, is_augmented=self.is_augmented)
        self._cancel()
        self._job = self._background.run(work, self._keep_content, self._report_failure)

    def _keep_content(self, content: PreviewContent | None) -> None:
        if content is None:
            self._fail("A run does not use this image: its repeats are 0.")
            return
        self.content, self.message = content, ""
        self.use = min(self.use, content.num_uses - 1)
        self.changed()

    def _report_failure(self, error: Exception) -> None:
        self._fail(f"This cannot be shown: {error}")

    def _fail(self, message: str) -> None:
        self.content, self.message = None, message
        self.changed()

    def _cancel(self) -> None:
        cancel(self._job)


def describe_use(content: PreviewContent, use: int) -> str:
    """Return which use of its image is shown."""
    index = content.seen.sample_index
    repeat = f", repeat {index.repeat + 1}" if index.repeat else ""
    most = f" of {MAX_USES}" if content.num_uses >= MAX_USES else ""
    return f"use {use + 1}{most}: epoch {index.epoch + 1}{repeat}"


def describe_changes(content: PreviewContent, *, is_augmented: bool) -> str:
    """Return the changes to the image, and how its variations are used, as text."""
    seen = content.seen
    if seen.pixels is None:
        return ""
    if not is_augmented:
        return "Without augmentation."
    changes = ", ".join(seen.changes) or "no augmentation"
    if seen.num_variations is None:
        return f"{changes[:1].upper()}{changes[1:]}. Each use is augmented anew."
    variation = f"variation {seen.variation + 1} of {seen.num_variations}"
    again = " All uses are the same; raise Image variations for more." if seen.num_variations == 1 else ""
    return f"{changes[:1].upper()}{changes[1:]} ({variation}).{again if seen.changes else ''}"


def _build(config: Config, number: int, scans: dict[int, Scan], report: Report) -> ConceptPreview:
    by_concept = {_key(c): scans[id(c)] for c in config.concepts if id(c) in scans}

    def find_scan(concept: Concept) -> Scan | None:
        return by_concept.get(_key(concept))

    return ConceptPreview(config, number, scan_of=find_scan, watch=partial(report, "scanning"))


def _key(concept: Concept) -> tuple[Any, ...]:
    return concept.path, concept.kind, concept.include_subfolders, concept.caption_origin, concept.excluded


def _show(
    preview: ConceptPreview, image: int, use: int, thumbnails: ThumbnailCache, *, is_augmented: bool
) -> PreviewContent | None:
    uses = preview.uses(image)
    if not uses:
        return None
    chosen = min(use, len(uses) - 1)
    seen = preview.use(uses[chosen], is_augmented=is_augmented)
    original = thumbnails.fit(seen.path, ORIGINAL_PX, ORIGINAL_PX) if seen.pixels is not None else None
    captions = tuple(preview.caption(u) for u in uses[chosen : chosen + NUM_CAPTIONS])
    return PreviewContent(seen, original, len(uses), captions)
