"""The WD taggers: an ONNX file with a probability for each tag of a table. Facts from their model cards.

Input: a square image with white margins, BGR, float32 from 0 to 255, (1, side, side, 3).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.annotators.models.onnx_session import Session, open_session
from modules.annotators.protocol import Captioner, CaptionSettings
from modules.system.errors import DarkroomError

_SIDE_PX = 448
_GENERAL, _CHARACTER = "0", "4"  # the other category, 9, is how explicit it is
_MIN_FACE_CHARS = 3


@dataclass(frozen=True, slots=True)
class Tag:
    """A row of the table."""

    name: str
    category: str


class WdTagger:
    """Writes the tags of an image, general ones after those of characters, the most probable first."""

    def __init__(self, session: Session, tags: Sequence[Tag], settings: CaptionSettings) -> None:
        self._session = session
        self._tags = tags
        self._settings = settings
        self._excluded = {_plain(tag) for tag in settings.excluded_tags}
        first = session.get_inputs()[0]
        self._input = first.name
        self._side_px = first.shape[1] if isinstance(first.shape[1], int) else _SIDE_PX

    def caption(self, image: Image.Image) -> str:
        """Return the tags of an image."""
        feeds = {self._input: square_bgr(image, self._side_px)[None]}
        probabilities = np.asarray(self._session.run(None, feeds)[0], np.float32)[0]
        if len(probabilities) != len(self._tags):
            raise DarkroomError(
                f"The tagger has {len(probabilities):,} tags, its table {len(self._tags):,}.",
                advice="Delete its files, so that they are downloaded again.",
            )
        found: dict[str, list[tuple[float, str]]] = {_CHARACTER: [], _GENERAL: []}
        limits = {_CHARACTER: self._settings.character_threshold, _GENERAL: self._settings.threshold}
        for tag, probability in zip(self._tags, probabilities.tolist(), strict=True):
            if tag.category in limits and probability >= limits[tag.category]:
                found[tag.category].append((-probability, tag.name))
        names = [self._written(name) for kind in found.values() for _, name in sorted(kind)]
        return ", ".join(name for name in names if _plain(name) not in self._excluded)

    def _written(self, name: str) -> str:
        """Return a tag with spaces; a face such as 0_0 or ^_^ keeps its underscore."""
        is_face = len(name) <= _MIN_FACE_CHARS or not any(c.isalpha() for c in name)
        return name if self._settings.keep_underscores or is_face else name.replace("_", " ")


def square_bgr(image: Image.Image, side_px: int) -> NDArray[np.float32]:
    """Return an image in the middle of a white square of `side_px`, BGR, (side, side, 3)."""
    side = max(image.size)
    square = Image.new("RGB", (side, side), (255, 255, 255))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    resized = square.resize((side_px, side_px), Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(resized, np.float32)[:, :, ::-1])


def read_tags(file: Path) -> tuple[Tag, ...]:
    """Return the table of tags. Raises DarkroomError where it is not one."""
    try:
        with file.open(encoding="utf-8", newline="") as rows:
            return tuple(Tag(row["name"], row["category"]) for row in csv.DictReader(rows))
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise DarkroomError(
            f"The table of tags {file} cannot be read: {error!r}.",
            advice="Delete it, so that it is downloaded again.",
        ) from error


def make(folder: Path, settings: CaptionSettings, device: str) -> Captioner:
    """Return the tagger in a folder. Raises DarkroomError where it cannot be loaded."""
    return WdTagger(open_session(folder / "model.onnx", device), read_tags(folder / "selected_tags.csv"), settings)


def _plain(tag: str) -> str:
    return tag.strip().lower().replace("_", " ")
