"""Image augmentation."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.settings.field import Section, Setting, When

_IMAGES = "Image augmentation"
_WAYS = {"off": "Off", "random": "Random", "always": "Fixed"}
_CHANGED = ("random", "always")

Way = Literal["off", "random", "always"]


def _strength(label: str, of_what: str) -> tuple[Ge, Le, Setting]:
    return (
        Ge(0),
        Le(1),
        Setting(
            label,
            f"The maximum change of {of_what}; fixed uses exactly this much.",
            group=_IMAGES,
            level="advanced",
            applies_when=When(label.partition(":")[0].lower(), _CHANGED),
        ),
    )


class ImageChanges(Section):
    """Augmentation of a concept's images."""

    crop_jitter: Annotated[
        bool,
        Setting(
            "Crop jitter",
            "Crops at a random position instead of the centre.",
            group=_IMAGES,
            level="advanced",
            not_yet="ignored",
        ),
    ] = False
    flip: Annotated[
        Way,
        Setting(
            "Flip",
            "Flips horizontally. Not suited for faces, text, or anything asymmetric.",
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
            "Rotates the image.",
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
            "Rotate: max angle",
            "The maximum angle; fixed rotates by exactly this much.",
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
            "Increases or decreases the contrast.",
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
            "Increases or decreases the saturation.",
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
            "Shifts all hues around the colour wheel.",
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
            "Circular mask shrink",
            "Shrinks the mask to a circle of random size.",
            group=_IMAGES,
            level="advanced",
            not_yet="refused",
        ),
    ] = False
    mask_rotate_crop: Annotated[
        bool,
        Setting(
            "Mask rotate and crop",
            "Rotates the image randomly and crops it to the mask.",
            group=_IMAGES,
            level="advanced",
            not_yet="refused",
        ),
    ] = False
    resolution_px: Annotated[
        tuple[Annotated[int, Ge(32), Le(8192)], ...],
        Setting(
            "Resolution override",
            "The resolution of this concept, in place of the general one; several are used in turn.",
            unit="px",
            group=_IMAGES,
            level="advanced",
            empty_means="the general one",
            not_yet="refused",
        ),
    ] = ()
