"""What is done to images before they are learned from."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.settings.field import Section, Setting, When

_IMAGES = "Changes to images"
_WAYS = {"off": "Off", "random": "At random", "always": "Always"}
_CHANGED = ("random", "always")

Way = Literal["off", "random", "always"]


def _strength(label: str, of_what: str) -> tuple[Ge, Le, Setting]:
    return (
        Ge(0),
        Le(1),
        Setting(
            label,
            f"How far {of_what} is changed at most; always takes exactly this much.",
            group=_IMAGES,
            level="advanced",
            applies_when=When(label.partition(":")[0].lower(), _CHANGED),
        ),
    )


class ImageChanges(Section):
    """What is done to a concept's images before they are learned from."""

    crop_jitter: Annotated[
        bool,
        Setting(
            "Crop jitter",
            "Where an image has to be cropped, crops it elsewhere each time, and not in the middle.",
            group=_IMAGES,
            level="advanced",
            not_yet="ignored",
        ),
    ] = False
    flip: Annotated[
        Way,
        Setting(
            "Flip",
            "Mirrors left and right. Not for faces, writing, or whatever has two sides.",
            group=_IMAGES,
            level="advanced",
            choice_labels=_WAYS,
            not_yet="refused",
        ),
    ] = "off"
    rotate: Annotated[
        Way,
        Setting(
            "Rotate",
            "Turns the image.",
            group=_IMAGES,
            level="advanced",
            choice_labels=_WAYS,
            not_yet="refused",
        ),
    ] = "off"
    rotate_max_degrees: Annotated[
        float,
        Ge(0),
        Le(360),
        Setting(
            "Rotate: angle",
            "How far it is turned at most; always turns by exactly this much.",
            unit="degrees",
            group=_IMAGES,
            level="advanced",
            applies_when=When("rotate", _CHANGED),
        ),
    ] = 0.0
    brightness: Annotated[
        Way,
        Setting(
            "Brightness",
            "Makes the image brighter or darker.",
            group=_IMAGES,
            level="advanced",
            choice_labels=_WAYS,
            not_yet="refused",
        ),
    ] = "off"
    brightness_max: Annotated[float, *_strength("Brightness: strength", "the brightness")] = 0.0
    contrast: Annotated[
        Way,
        Setting(
            "Contrast",
            "Draws light and dark further apart or closer together.",
            group=_IMAGES,
            level="advanced",
            choice_labels=_WAYS,
            not_yet="refused",
        ),
    ] = "off"
    contrast_max: Annotated[float, *_strength("Contrast: strength", "the contrast")] = 0.0
    saturation: Annotated[
        Way,
        Setting(
            "Saturation",
            "Makes the colours stronger or paler.",
            group=_IMAGES,
            level="advanced",
            choice_labels=_WAYS,
            not_yet="refused",
        ),
    ] = "off"
    saturation_max: Annotated[float, *_strength("Saturation: strength", "the saturation")] = 0.0
    hue: Annotated[
        Way,
        Setting(
            "Hue",
            "Moves all colours round the circle of colours.",
            group=_IMAGES,
            level="advanced",
            choice_labels=_WAYS,
            not_yet="refused",
        ),
    ] = "off"
    hue_max: Annotated[float, *_strength("Hue: strength", "the hue")] = 0.0
    circular_mask_shrink: Annotated[
        bool,
        Setting(
            "Shrink the mask",
            "Cuts the mask down to a circle of a size that is drawn each time.",
            group=_IMAGES,
            level="advanced",
            not_yet="refused",
        ),
    ] = False
    mask_rotate_crop: Annotated[
        bool,
        Setting(
            "Turn and crop to the mask",
            "Turns the image a little and crops it to what the mask shows.",
            group=_IMAGES,
            level="advanced",
            not_yet="refused",
        ),
    ] = False
    resolution_px: Annotated[
        tuple[Annotated[int, Ge(32), Le(8192)], ...],
        Setting(
            "Own resolution",
            "The size to train this concept at, in place of the general one; several are taken in turn.",
            unit="px",
            group=_IMAGES,
            level="advanced",
            empty_means="the general one",
            not_yet="refused",
        ),
    ] = ()
