"""The input of the doctor's checks, and their findings.

Every check gets the scanned images with their measurements, and the facts about their concepts. The table, the page,
JSON and the window show the same findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from modules.data.buckets import ResizeCrop, Size
from modules.data.captions.operations import NO_CHANGES, CaptionRules
from modules.data.concept import VALIDATION_KINDS, Kind
from modules.data.doctor.measure import Measurement
from modules.data.example import Example
from modules.data.order import PartialBatches
from modules.system.problem import Severity


@dataclass(frozen=True, slots=True)
class ExaminedConcept:
    """A concept. `samples_per_image` is how often an epoch uses each of its images, on average.

    `fixed_sizes`: for each of its resolutions, whether it is one size for all images, without buckets.
    `has_own_captions`: each image has its own captions, not the whole concept's; `default_captions` are those of the
    images without a text file.
    """

    name: str
    kind: Kind
    folder: Path
    samples_per_image: float = 1.0
    has_own_captions: bool = True
    default_captions: tuple[str, ...] = ()
    rules: CaptionRules = NO_CHANGES
    sets_samples: bool = False
    fixed_sizes: tuple[bool, ...] = ()

    @property
    def has_images(self) -> bool:
        """Whether it has images, and not only prompts."""
        return self.kind != "prompts"


@dataclass(frozen=True, slots=True)
class ExaminedImage:
    """An image of a concept (its index) with its measurements; `broken` is the reason where it cannot be decoded.

    `broken_rejected` is the reason for the rejected image of a pair, which is not examined otherwise: it may be a bad
    image.
    """

    example: Example
    concept: int
    measurements: Measurement | None = None
    broken: str = ""
    broken_rejected: str = ""

    @property
    def path(self) -> Path:
        """The image's file."""
        return self.example.image.path


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that the run leaves out, with the reason; `is_image` if it is one and can be decoded all the same."""

    path: Path
    reason: str
    is_image: bool = False


@dataclass(frozen=True, slots=True)
class LongCaption:
    """A caption of more than one chunk of tokens: its images, its tokens, and the text beyond the first chunk."""

    files: tuple[Path, ...]
    num_tokens: int
    beyond: str
    chunk_tokens: int
    is_truncated: bool = False


@dataclass(frozen=True, slots=True)
class Examination:
    """The data of a run as the doctor sees it. `bucket_samples`: the training samples of each size in an epoch.

    A check that takes long calls `check` now and then, which may raise to stop it.
    """

    concepts: tuple[ExaminedConcept, ...]
    images: tuple[ExaminedImage, ...]
    skipped: tuple[SkippedFile, ...] = ()
    long_captions: tuple[LongCaption, ...] = ()
    bucket_samples: Mapping[Size, int] = field(default_factory=dict)
    batch_size: int = 1
    partial_batches: PartialBatches = "keep"
    check: Callable[[], None] = lambda: None

    def by_concept(self) -> Iterator[tuple[ExaminedConcept, list[ExaminedImage]]]:
        """Yield each concept with its images."""
        for index, concept in enumerate(self.concepts):
            yield concept, [i for i in self.images if i.concept == index]

    def measurements(self) -> Iterator[tuple[ExaminedImage, Measurement]]:
        """Yield the images that could be decoded, with their measurements."""
        for image in self.images:
            if image.measurements is not None:
                yield image, image.measurements

    def fits_of(self, image: ExaminedImage) -> Iterator[tuple[ResizeCrop, bool]]:
        """Yield the resize and crop of an image at each resolution, and whether all images get the same size there."""
        fixed = self.concepts[image.concept].fixed_sizes or (False,)
        yield from zip(image.example.resize_crops, cycle(fixed), strict=False)  # a concept's resolutions recur

    def is_validation(self, image: ExaminedImage) -> bool:
        """Return whether an image is only validated on."""
        return self.concepts[image.concept].kind in VALIDATION_KINDS


SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is probably wrong with some files.

    `figure` is what its check measured, in `unit`. `files` may contain folders and paths into archives. `check` is the
    name of the check, which the report adds.
    """

    files: tuple[Path, ...]
    reason: str
    figure: float
    unit: str
    fix: str
    severity: Severity = "warning"
    check: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON-safe data."""
        return {
            "check": self.check,
            "severity": self.severity,
            "files": [str(f) for f in self.files],
            "reason": self.reason,
            "figure": round(self.figure, 4),
            "unit": self.unit,
            "fix": self.fix,
        }


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """The record of a check: its name, its label, what it looks for, and the function that finds it.

    `compares_concepts`: what it finds depends on the other concepts of the run.
    """

    name: str
    label: str
    help: str
    find: Callable[[Examination], Iterable[Finding]]
    compares_concepts: bool = False


def short_name(path: Path) -> str:
    """Return the name of a file with its folder's, as it may be shown: concepts often have files of the same name."""
    return printable(f"{path.parent.name}/{path.name}")


def printable(text: object) -> str:
    """Return a text as it may be shown: control characters, line breaks and undecodable bytes as escapes.

    File names may contain any of them, also sequences that change the colours of a terminal or the writing direction.
    """
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))
    return "".join(escaped)
