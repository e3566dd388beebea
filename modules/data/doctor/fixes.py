"""Fixes for the doctor's findings that lose nothing: each is a list of steps, which is shown first and can be undone.

A fix only moves files, or rewrites one whose original it keeps. Broken files and originals are kept in a hidden folder
next to them, which no scan enters.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.data.archives import archive_of
from modules.data.captions.sources import read_text
from modules.data.doctor.finding import Finding
from modules.data.doctor.pixel_checks import SUFFIXES_OF, right_suffix
from modules.data.images import BrokenImageError, open_image
from modules.data.listing import SUFFIXES
from modules.data.scan import ENCODINGS
from modules.data.source_image import SourceImage
from modules.system.atomic import atomic_file, write_text
from modules.system.errors import DarkroomError

KEPT_FOLDER = ".set-aside"


@dataclass(frozen=True, slots=True)
class Step:
    """One change: a file is moved to `target`; with a `text`, it is copied there and then rewritten as UTF-8."""

    source: Path
    target: Path
    text: str | None = None

    @property
    def sentence(self) -> str:
        """The step in words, for its preview."""
        if self.text is not None:
            return f"{self.source.name}: rewrite as UTF-8; the original is kept as {KEPT_FOLDER}/{self.target.name}"
        if self.target.parent == self.source.parent:
            return f"{self.source.name} → {self.target.name}"
        return f"{self.source.name} → {self.target.parent.name}/{self.target.name}"


@dataclass(frozen=True, slots=True)
class FixSpec:
    """The record of a fix: its name, its label with the number of files, and the function that plans its steps."""

    name: str
    label: str
    help: str
    steps: Callable[[Sequence[Finding], Sequence[SourceImage]], Iterable[Step]]


def apply(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Do the steps and return the completed ones, for `undo`.

    Files that are gone, and targets that exist by now, are left out. Raises DarkroomError if a file cannot be changed;
    then everything is as before.
    """
    done: list[Step] = []
    for step in steps:
        if not step.source.exists() or step.target.exists():
            continue
        try:
            _do(step)
        except OSError as error:
            undo(done)
            raise DarkroomError(
                f"{step.source} cannot be changed: {error.strerror or error}. Nothing was changed.",
                advice="Check the permissions of the folder.",
            ) from error
        done.append(step)
    return tuple(done)


def undo(done: Sequence[Step]) -> None:
    """Undo steps that were done, the last one first. Raises DarkroomError if a file cannot be moved back."""
    for step in reversed(done):
        if not step.target.exists() or (step.text is None and step.source.exists()):
            continue
        try:
            step.target.replace(step.source)
            _remove_if_empty(step.target.parent)
        except OSError as error:
            raise DarkroomError(
                f"{step.target} cannot be moved back to {step.source}: {error.strerror or error}.",
                advice="Move it yourself.",
            ) from error


def _do(step: Step) -> None:
    step.target.parent.mkdir(parents=True, exist_ok=True)
    if step.text is None:
        step.source.rename(step.target)
        return
    with atomic_file(step.target) as temporary:
        shutil.copy2(step.source, temporary)
    try:
        write_text(step.source, step.text)
    except OSError:
        step.target.unlink()
        raise


def _remove_if_empty(folder: Path) -> None:
    if folder.name == KEPT_FOLDER and not any(folder.iterdir()):
        folder.rmdir()


def _plan_renames(findings: Sequence[Finding], _images: Sequence[SourceImage]) -> Iterator[Step]:
    """Yield a step for each file of a wrong suffix whose right name is free."""
    taken: set[Path] = set()
    for finding in findings:
        path = finding.files[0]
        if finding.check != "wrong_suffix" or (suffix := right_suffix(path, _format(path))) == "":
            continue
        target = path.with_suffix(suffix)
        if target not in taken and not target.exists():
            taken.add(target)
            yield Step(path, target)


def _plan_set_aside(findings: Sequence[Finding], _images: Sequence[SourceImage]) -> Iterator[Step]:
    """Yield a step for each image file that is damaged."""
    for finding in findings:
        path = finding.files[0]
        is_image = path.suffix.lower() in SUFFIXES and archive_of(path) is None
        if finding.check == "unreadable" and finding.severity == "error" and is_image and path.is_file():
            yield Step(path, _free_place(path))


def _plan_utf_8(_findings: Sequence[Finding], images: Sequence[SourceImage]) -> Iterator[Step]:
    """Yield a step for each caption file that is not UTF-8."""
    files = {i.caption_file: None for i in images if i.caption_fault in ENCODINGS and i.caption_file is not None}
    for file in files:
        if archive_of(file) is None and file.is_file():
            text, fault = read_text(file)
            if fault in ENCODINGS:
                yield Step(file, _free_place(file), text)


def _free_place(file: Path) -> Path:
    """Return a free name in the folder of kept files next to a file."""
    folder = file.parent / KEPT_FOLDER
    names = (file.name, *(f"{file.stem} {number}{file.suffix}" for number in range(2, 10_000)))
    return next(folder / name for name in names if not (folder / name).exists())


def _format(path: Path) -> str:
    try:
        with open_image(path) as image:
            return image.format or ""
    except BrokenImageError:
        return ""


FIXES: Mapping[str, FixSpec] = {
    spec.name: spec
    for spec in (
        FixSpec(
            "set_aside",
            "Set aside broken files",
            f"Moves image files that cannot be read into the hidden folder {KEPT_FOLDER} next to them.",
            _plan_set_aside,
        ),
        FixSpec(
            "rename",
            "Correct suffixes",
            f"Renames images whose suffix does not belong to their format ({', '.join(SUFFIXES_OF)}). Captions and "
            "masks belong to the name without the suffix, so they stay with their image.",
            _plan_renames,
        ),
        FixSpec(
            "utf_8",
            "Convert captions to UTF-8",
            f"Rewrites captions in older encodings as UTF-8; the originals are kept in {KEPT_FOLDER}.",
            _plan_utf_8,
        ),
    )
}
