"""All captions of a data set at once: which are listed, edits of one or many files, and the way back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from modules.data.captions.caption_file import parse_caption_file
from modules.system.problem import count
from ui.features.captions.image_set import ImageSet, Source, read_images
from ui.features.captions.replacing import Change, Outcome, WrittenFile, apply, undo
from ui.loop.background import Background
from ui.loop.signal import Signal

Choice = Literal["all", "with", "without", "empty"]
CHOICES: Mapping[Choice, str] = {
    "all": "All images",
    "with": "With these words",
    "without": "Without these words",
    "empty": "Without a caption",
}
Undo = tuple[WrittenFile, ...]
_MAX_AT_ONCE = 200  # files that are written while the window waits


class _Writing:
    """Changes that are written once: in the background, or at once by a caller that cannot wait.

    `undo` is the history of the folder to which they belong: another one may be open when they are written.
    """

    def __init__(
        self, work: Callable[[], Outcome], size: int, is_undo: bool, undo: list[Undo], lock: threading.Lock
    ) -> None:
        self.size, self.is_undo, self.undo = size, is_undo, undo
        self._work, self._lock, self._is_done = work, lock, False

    def work(self) -> Outcome | None:
        """Write the changes; return None if that is already done."""
        with self._lock:
            if self._is_done:
                return None
            self._is_done = True
            return self._work()


class AllCaptions:
    """Changes are shown at once and written in the background, in their order. `undo` takes back the last one."""

    def __init__(self, source: Source, background: Background) -> None:
        self.set = ImageSet(source)
        self.images: tuple[Path, ...] = ()
        """The listed images."""
        self.message = ""
        self.is_reading = False
        self.choice: Choice = "all"
        self.words = ""
        self.changed: Signal[[]] = Signal()
        self.written: Signal[[]] = Signal()  # files
        self._background = background
        self._undo: list[Undo] = []
        self._waiting: list[_Writing] = []
        self._lock = threading.Lock()
        self._image_of: dict[Path, Path] = {}

    # -- showing

    def open(self, source: Source) -> None:
        """Read the captions of a source."""
        self.flush()
        self.set, self.images, self._undo, self.is_reading = ImageSet(source), (), [], True
        self._image_of = {}  # what is still being written is of the last source
        self.message = ""
        self.changed()
        self._background.run(partial(read_images, source), self._keep, self._fail)

    def text_of(self, image: Path) -> str:
        """Return the caption of an image."""
        return self.set.text_of(image)

    def list(self, choice: Choice, words: str) -> None:
        """List the images of a choice: those whose captions or names have all the words, or do not."""
        self.choice, self.words = choice, words
        self.images = tuple(list_images(self.set, choice, words))
        self.changed()

    @property
    def texts(self) -> dict[Path, str]:
        """The texts of the listed images by caption file, also of those without a file."""
        return {self.set.captions[image]: self.set.text_of(image) for image in self.images}

    # -- changing

    @property
    def can_undo(self) -> bool:
        """Whether there is a change to take back."""
        return bool(self._undo) and not self._waiting

    def edit(self, image: Path, text: str) -> None:
        """Set the caption of an image."""
        before = self.set.text_of(image)
        if text != before:
            self.write((Change(self.set.captions[image], before, text, 1),))

    def write(self, changes: Sequence[Change]) -> None:
        """Write changes to caption files; what has changed on the disk meanwhile is left alone and named."""
        if changes:
            self._note({change.path: change.after for change in changes})
            self._start(partial(apply, changes), len(changes), is_undo=False)

    def undo(self) -> None:
        """Restore the files of the last change."""
        if self.can_undo:
            written = self._undo.pop()
            self._start(partial(undo, written), len(written), is_undo=True)

    def note_texts(self, texts: Mapping[Path, str]) -> None:
        """Show the texts of files that another window has written."""
        self._note(texts)
        self.written()

    def flush(self) -> None:
        """Write what still waits, before this returns; many files are left to the background."""
        if sum(job.size for job in self._waiting) <= _MAX_AT_ONCE:
            for job in self._waiting:
                self._finish(job, job.work())

    def _start(self, work: Callable[[], Outcome], size: int, *, is_undo: bool) -> None:
        self._waiting.append(_Writing(work, size, is_undo, self._undo, self._lock))
        if size > _MAX_AT_ONCE:
            self.message = f"Writing {count(size, 'caption')}…"
            self.changed()
        if len(self._waiting) == 1:
            self._write_next()

    def _write_next(self) -> None:
        job = self._waiting[0]

        def keep(outcome: Outcome | None) -> None:
            self._finish(job, outcome)
            self._waiting = [other for other in self._waiting if other is not job]
            if self._waiting:
                self._write_next()
            self.changed()

        self._background.run(job.work, keep)

    def _finish(self, job: _Writing, outcome: Outcome | None) -> None:
        if outcome is None:  # it was flushed
            return
        if outcome.written and not job.is_undo:
            job.undo.append(outcome.written)
        names = "".join(f" {path.name} was left alone: {why}." for path, why in outcome.left[:3])
        self.message = f"{'Restored' if job.is_undo else 'Changed'} {count(len(outcome.written), 'caption')}.{names}"
        self._note({item.path: parse_caption_file(item.after or b"").text for item in outcome.written})
        if outcome.left:
            self._background.run(partial(read_images, self.set.source), self._keep, self._fail)
        self.written()

    def _note(self, texts: Mapping[Path, str]) -> None:
        changed = {self._image_of[path]: text for path, text in texts.items() if path in self._image_of}
        texts = {self.set.captions[image]: text for image, text in changed.items()}
        self.set = replace(self.set, texts={**self.set.texts, **texts})  # its counts of tags are not shown here
        self.changed()

    def _keep(self, images: ImageSet) -> None:
        if images.source == self.set.source:
            self.set, self.is_reading = images, False
            self._image_of = {path: image for image, path in images.captions.items()}
            self.list(self.choice, self.words)

    def _fail(self, error: Exception) -> None:
        self.is_reading, self.message = False, f"The folder cannot be read: {error}"
        self.changed()


def list_images(images: ImageSet, choice: Choice, words: str) -> Sequence[Path]:
    """Return the images of a choice. The words are looked for in captions, without regard to capitals."""
    terms = words.lower().split()
    if choice == "empty":
        return [image for image in images.images if not images.text_of(image).strip()]
    if choice == "all" or not terms:
        return images.images
    has_all = (all(term in images.text_of(image).lower() for term in terms) for image in images.images)
    return [i for i, found in zip(images.images, has_all, strict=True) if found == (choice == "with")]
