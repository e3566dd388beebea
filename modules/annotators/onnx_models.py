"""Models that run in ONNX Runtime, which is an optional package: U2-Net, IS-Net and the WD taggers."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.annotators.protocol import Captioner, CaptionSettings, Masker, MaskSettings, SoftMask, split_list
from modules.annotators.registry import ONNX
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason


class Session(Protocol):
    """The part of onnxruntime.InferenceSession that is used here."""

    def get_inputs(self) -> Sequence[Any]:
        """Return the inputs, each with a name and a shape."""
        ...

    def run(self, outputs: None, feeds: Mapping[str, NDArray[np.float32]]) -> Sequence[Any]:
        """Return all outputs."""
        ...


def open_session(file: Path, device: str) -> Session:
    """Return a session of an ONNX file, on a GPU if `device` is one and the package supports it.

    Raises DarkroomError if the package is missing, or the file cannot be loaded.
    """
    try:
        runtime = importlib.import_module(ONNX.name)
    except ImportError as error:
        raise DarkroomError(
            f"{file.name} needs the package {ONNX.name}, which cannot be loaded ({plain_reason(error)}).",
            advice=f"{ONNX.install}, or choose another model.",
        ) from error
    wanted: list[str | tuple[str, dict[str, int]]] = ["CPUExecutionProvider"]
    if not device.startswith("cpu") and "CUDAExecutionProvider" in runtime.get_available_providers():
        number = int(device.partition(":")[2] or 0)
        wanted.insert(0, ("CUDAExecutionProvider", {"device_id": number}))
    try:
        session: Session = runtime.InferenceSession(str(file), providers=wanted)
    except Exception as error:
        raise DarkroomError(
            f"The model file {file} cannot be loaded: {plain_reason(error)}.",
            advice="Delete it, so that it is downloaded again.",
        ) from error
    return session


# U2-Net (Qin et al. 2020) and IS-Net (Qin et al. 2022) as ONNX files: the foreground of an image.
#
# Input: the image squeezed to a square, divided by its largest value and normalised, (1, 3, side, side). The first
# output is a map of the same side; it is stretched to the range from 0 to 1.
_MEAN = (0.485, 0.456, 0.406)


@dataclass(frozen=True, slots=True)
class Foreground:
    """Finds the foreground with a network of an input of `side_px`, normalised with ImageNet's mean and `std`."""

    session: Session
    side_px: int
    std: tuple[float, float, float]

    def mask(self, image: Image.Image) -> SoftMask:
        """Return how probably each pixel belongs to the foreground."""
        small = image.resize((self.side_px, self.side_px), Image.Resampling.LANCZOS)
        rgb_SS3 = np.asarray(small, np.float32)
        rgb_SS3 = rgb_SS3 / max(float(rgb_SS3.max()), 1e-6)
        normal_SS3 = (rgb_SS3 - np.array(_MEAN, np.float32)) / np.array(self.std, np.float32)
        normal_13SS = np.ascontiguousarray(normal_SS3.transpose(2, 0, 1)[None], np.float32)
        feeds = {self.session.get_inputs()[0].name: normal_13SS}
        mask_SS = np.asarray(self.session.run(None, feeds)[0], np.float32)[0, 0]
        least, most = float(mask_SS.min()), float(mask_SS.max())
        mask_SS = (mask_SS - least) / max(most - least, 1e-6)
        return resize_mask(mask_SS, image.size)


def resize_mask(values: SoftMask, size: tuple[int, int]) -> SoftMask:
    """Return values at another size (width, height), bilinear, from 0 to 1."""
    image = Image.fromarray(values).resize(size, Image.Resampling.BILINEAR)
    return np.asarray(image, np.float32).clip(0, 1)


def make_u2net(file: Path | None, settings: MaskSettings, device: str) -> Masker:
    """Return U2-Net. Raises DarkroomError if it cannot be loaded."""
    del settings
    assert file is not None
    return Foreground(open_session(file, device), 320, (0.229, 0.224, 0.225))


def make_isnet(file: Path | None, settings: MaskSettings, device: str) -> Masker:
    """Return IS-Net. Raises DarkroomError if it cannot be loaded."""
    del settings
    assert file is not None
    return Foreground(open_session(file, device), 1024, (1.0, 1.0, 1.0))


# The WD taggers: an ONNX file with a probability for each tag of a table. Facts from their model cards.
#
# Input: a square image with white margins, BGR, float32 from 0 to 255, (1, side, side, 3).
_SIDE_PX = 448
_GENERAL, _CHARACTER = "0", "4"  # the other category, 9, is how explicit it is
_MIN_FACE_CHARS = 3


@dataclass(frozen=True, slots=True)
class Tag:
    """A row of the table."""

    name: str
    category: str


class WdTagger:
    """Writes the tags of an image, first of characters, then general ones, the most probable first."""

    def __init__(self, session: Session, tags: Sequence[Tag], settings: CaptionSettings) -> None:
        self._session = session
        self._tags = tags
        self._settings = settings
        self._excluded = {_plain(tag) for tag in split_list(settings.exclude_tags)}
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
        scores: dict[str, list[tuple[float, str]]] = {_CHARACTER: [], _GENERAL: []}
        limits = {_CHARACTER: self._settings.character_threshold, _GENERAL: self._settings.threshold}
        for tag, probability in zip(self._tags, probabilities.tolist(), strict=True):
            if tag.category in limits and probability >= limits[tag.category]:
                scores[tag.category].append((-probability, tag.name))
        names = [self._format_tag(name) for kind in scores.values() for _, name in sorted(kind)]
        return ", ".join(name for name in names if _plain(name) not in self._excluded)

    def _format_tag(self, name: str) -> str:
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
    """Return the table of tags. Raises DarkroomError if it is not one."""
    try:
        with file.open(encoding="utf-8", newline="") as rows:
            return tuple(Tag(row["name"], row["category"]) for row in csv.DictReader(rows))
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise DarkroomError(
            f"The table of tags {file} cannot be read: {plain_reason(error)}.",
            advice="Delete it, so that it is downloaded again.",
        ) from error


def make_wd_tagger(folder: Path, settings: CaptionSettings, device: str) -> Captioner:
    """Return the tagger in a folder. Raises DarkroomError if it cannot be loaded."""
    return WdTagger(open_session(folder / "model.onnx", device), read_tags(folder / "selected_tags.csv"), settings)


def _plain(tag: str) -> str:
    return tag.strip().lower().replace("_", " ")
