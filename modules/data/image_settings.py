"""Image augmentation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from modules.settings.conditions import EDITING, READS_REFERENCES
from modules.settings.field import Section, Setting, When, advanced_setting
from modules.settings.shared_types import Resolution
from modules.system.paths import from_root

IMAGE_AUGMENTATION = "Image augmentation"
REFERENCE_IMAGES = "Reference images"
_READS_FILES = When("model.variant", (*EDITING, "depth"), otherwise=When("masks.custom_conditioning_image", (True,)))
_WAYS = {"off": "Off", "random": "Random", "always": "Fixed"}
_CHANGED = ("random", "always")

_FACTOR = "The maximum change: 0.2 is a factor of 0.8 to 1.2."

Way = Literal["off", "random", "always"]


def _strength(label: str, help_text: str) -> tuple[Ge, Le, Setting]:
    return (
        Ge(0),
        Le(1),
        advanced_setting(
            label,
            f"{help_text} Fixed uses exactly this much.",
            group=IMAGE_AUGMENTATION,
            applies_when=When(label.partition(":")[0].lower(), _CHANGED),
        ),
    )


CONDITIONING_FOLDERS = ("conditioning_folder", "conditioning_folder_2", "conditioning_folder_3")
"""The settings of the folders of conditioning images, in the order of the images."""


class ImageChanges(Section):
    """Augmentation of a concept's images."""

    group: ClassVar[str] = IMAGE_AUGMENTATION

    crop_jitter: Annotated[
        bool,
        advanced_setting(
            "Crop jitter",
            "Crops at a random position instead of the centre, where the image is larger than its bucket.",
        ),
    ] = False
    flip: Annotated[
        Way,
        advanced_setting(
            "Flip", "Flips horizontally. Not suited for faces, text, or anything asymmetric.", choice_labels=_WAYS
        ),
    ] = "off"
    rotate: Annotated[
        Way,
        advanced_setting(
            "Rotate",
            "Rotates the image around the middle of its crop, enlarged as far as needed so that no corner is empty.",
            choice_labels=_WAYS,
        ),
    ] = "off"
    rotate_max_degrees: Annotated[
        float,
        Ge(0),
        Le(360),
        advanced_setting(
            "Rotate: max angle",
            "The maximum angle, in both directions; fixed rotates counterclockwise by exactly this much.",
            unit="degrees",
            applies_when=When("rotate", _CHANGED),
        ),
    ] = 0.0
    brightness: Annotated[
        Way, advanced_setting("Brightness", "Makes the image brighter or darker.", choice_labels=_WAYS)
    ] = "off"
    brightness_max: Annotated[float, *_strength("Brightness: strength", _FACTOR)] = 0.0
    contrast: Annotated[
        Way, advanced_setting("Contrast", "Increases or decreases the contrast.", choice_labels=_WAYS)
    ] = "off"
    contrast_max: Annotated[float, *_strength("Contrast: strength", _FACTOR)] = 0.0
    saturation: Annotated[
        Way, advanced_setting("Saturation", "Increases or decreases the saturation.", choice_labels=_WAYS)
    ] = "off"
    saturation_max: Annotated[float, *_strength("Saturation: strength", _FACTOR)] = 0.0
    hue: Annotated[Way, advanced_setting("Hue", "Shifts all hues around the colour wheel.", choice_labels=_WAYS)] = (
        "off"
    )
    hue_max: Annotated[
        float, *_strength("Hue: strength", "The maximum shift: 1 is half the colour wheel, in both directions.")
    ] = 0.0
    circular_mask_shrink: Annotated[
        bool,
        advanced_setting(
            "Circular mask shrink",
            "Cuts the mask to a circle around its middle, with a random radius: 20 % to 100 % of the mask's.",
        ),
    ] = False
    mask_rotate_crop: Annotated[
        bool,
        advanced_setting(
            "Mask rotate and crop",
            "Rotates the image randomly by up to 20 degrees and crops it to its mask, with a random margin of 10 % to "
            "30 % at each side. An image without a mask stays whole.",
        ),
    ] = False
    mask_source: Annotated[
        Literal["file", "folder", "alpha"],
        advanced_setting(
            "Masks from",
            "File: cat-masklabel.png next to cat.jpg. Folder: a file with the image's name in another folder. Alpha: "
            "the image's own opacity. White is trained with full weight.",
            choice_labels={"file": "File next to the image", "folder": "Masks folder", "alpha": "Alpha channel"},
        ),
    ] = "file"
    masks_folder: Annotated[
        str,
        advanced_setting(
            "Masks folder",
            "The folder of the masks, with the same names and subfolders as the images.",
            path_kind="folder",
            applies_when=When("mask_source", ("folder",)),
        ),
    ] = ""
    conditioning_folder: Annotated[
        str,
        Setting(
            "Reference folder",
            "The folder with the image before the edit for each image of the concept, under the same name. Also called "
            "control or conditioning images. For an inpainting or depth model: its conditioning images or depth maps. "
            "Without a folder: cat-condlabel.png next to cat.jpg.",
            group=REFERENCE_IMAGES,
            path_kind="folder",
            empty_means="next to the images",
            applies_when=_READS_FILES,
        ),
    ] = ""
    conditioning_folder_2: Annotated[
        str,
        advanced_setting(
            "Second reference folder",
            "The folder of the second reference images of an editing model, such as images of a garment or of a style. "
            "An image need not have one: images are batched with others that have as many.",
            group=REFERENCE_IMAGES,
            path_kind="folder",
            empty_means="cat-condlabel2.png next to cat.jpg",
            applies_when=READS_REFERENCES,
        ),
    ] = ""
    conditioning_folder_3: Annotated[
        str,
        advanced_setting(
            "Third reference folder",
            "The folder of the third reference images of an editing model.",
            group=REFERENCE_IMAGES,
            path_kind="folder",
            empty_means="cat-condlabel3.png next to cat.jpg",
            applies_when=READS_REFERENCES,
        ),
    ] = ""
    conditioning_columns: Annotated[
        str,
        advanced_setting(
            "Reference image columns",
            "The columns of the metadata file that name the reference images of an editing model, separated by commas; "
            "a list names several. The paths in the first column are relative to the first folder of reference images, "
            "and so on; without such a folder, to the metadata file or the concept's folder. They replace files with "
            "the image's name.",
            group=REFERENCE_IMAGES,
            empty_means="none: files with the image's name",
            applies_when=READS_REFERENCES,
        ),
    ] = ""
    resolution_px: Annotated[
        tuple[Resolution, ...],
        advanced_setting(
            "Resolution override",
            "The resolution of this concept, in place of the general one; several are used in turn.",
            unit="px",
            empty_means="the general one",
        ),
    ] = ()

    @property
    def conditioning_folders(self) -> tuple[Path | None, ...]:
        """The folders of the first, second and third conditioning images; None for files next to the images."""
        given: Iterator[str] = (getattr(self, name) for name in CONDITIONING_FOLDERS)
        return tuple(from_root(folder) if folder.strip() else None for folder in given)


AUGMENTATIONS = {name: f.default for name, f in ImageChanges.model_fields.items() if f.annotation in (bool, Way)}
"""Every augmentation by the name of its setting, with the value that switches it off."""
STRENGTH_OF = {
    "rotate": "rotate_max_degrees",
    "brightness": "brightness_max",
    "contrast": "contrast_max",
    "saturation": "saturation_max",
    "hue": "hue_max",
}
"""The setting of each augmentation's strength, for augmentations that have one."""


def is_random(settings: ImageChanges) -> bool:
    """Return whether two draws of these settings can differ in the image's pixels or in its mask."""
    return any(getattr(settings, name) in ("random", True) for name in AUGMENTATIONS)
