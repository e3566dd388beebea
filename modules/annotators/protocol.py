"""The protocols of captioners and maskers, and the settings of their models."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray
from PIL import Image

from modules.annotators.registry import CAPTIONERS, MASKERS, CaptionSetting, MaskSetting
from modules.settings.field import Section, Setting, When
from modules.settings.shared_types import Fraction

SoftMask = NDArray[np.float32]
"""(height, width) of the image, from 0 to 1."""

Detail = Literal["short", "detailed", "long"]
_DETAILS = {"short": "One sentence", "detailed": "Several sentences", "long": "A paragraph"}


def _captioner_uses(setting: CaptionSetting) -> When:
    return When("model", tuple(name for name, spec in CAPTIONERS.items() if setting in spec.settings))


def _masker_uses(setting: MaskSetting) -> When:
    return When("model", tuple(name for name, spec in MASKERS.items() if setting in spec.settings))


class CaptionSettings(Section):
    """The settings of captioners; each model uses some of them."""

    initial: Annotated[
        str,
        Setting(
            "Beginning",
            "The model continues this text, such as: a photo of.",
            applies_when=_captioner_uses("initial"),
        ),
    ] = ""
    detail: Annotated[
        Detail,
        Setting("Detail", "How much is described.", choice_labels=_DETAILS, applies_when=_captioner_uses("detail")),
    ] = "detailed"
    threshold: Annotated[
        Fraction, Setting("Threshold", "Least probability of a tag.", applies_when=_captioner_uses("threshold"))
    ] = 0.35
    character_threshold: Annotated[
        Fraction,
        Setting(
            "Character threshold",
            "Least probability of the name of a character.",
            applies_when=_captioner_uses("character_threshold"),
        ),
    ] = 0.85
    exclude_tags: Annotated[
        str,
        Setting(
            "Never write", "Tags that are never written, separated by commas.",
            applies_when=_captioner_uses("exclude_tags"),
        ),
    ] = ""  # fmt: skip
    keep_underscores: Annotated[
        bool,
        Setting(
            "Keep underscores", "Write long_hair, not long hair.", applies_when=_captioner_uses("keep_underscores")
        ),
    ] = False


class MaskSettings(Section):
    """The settings of maskers; each model uses some of them."""

    prompts: Annotated[
        str,
        Setting(
            "What to mask in",
            "Texts, separated by commas, such as: a face.",
            applies_when=_masker_uses("prompts"),
        ),
    ] = ""
    colour: Annotated[
        str,
        Setting(
            "Colour to mask out",
            "A name such as white, or a value such as #ffcc00.",
            applies_when=_masker_uses("colour"),
        ),
    ] = "white"
    tolerance: Annotated[
        int,
        *Interval(ge=0, le=255),
        Setting(
            "Tolerance",
            "Largest difference from the colour in any of red, green and blue.",
            applies_when=_masker_uses("tolerance"),
        ),
    ] = 20
    threshold: Annotated[
        Fraction, Setting("Threshold", "Least probability of a white pixel.", applies_when=_masker_uses("threshold"))
    ] = 0.3


def split_list(text: str) -> tuple[str, ...]:
    """Return the parts of a text that are separated by commas, without empty ones."""
    return tuple(part for piece in text.split(",") if (part := piece.strip()))


class Captioner(Protocol):
    """Describes images."""

    def caption(self, image: Image.Image) -> str:
        """Return the caption of an upright RGB image, on one line."""
        ...


class Masker(Protocol):
    """Finds the important part of images."""

    def mask(self, image: Image.Image) -> SoftMask:
        """Return for each pixel of an upright RGB image the probability that it belongs to that part."""
        ...
