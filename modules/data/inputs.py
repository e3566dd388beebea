"""The further inputs of models, besides the noisy latents and the prompt: one record and one registry line each.

An input travels by its name from a file in the concept's folder to `ModelFamily.predict`. Its record states all that
the scan, the caches, the loader and the batch need; a family lists the inputs of each of its variants by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:  # only editing models have reference images
    from modules.data.references import ReferenceFit

Value = TypeVar("Value")

MASK_SUFFIX = "-masklabel"
"""The end of the name of an image's mask, which is also used without being an input of the model."""


@dataclass(frozen=True, slots=True)
class ModelInput:
    """A further input of a model. Its file next to cat.jpg is cat{suffix}.png; with an empty suffix it has no file.

    `delivery` is how it enters the batch:
    - "latents": an image that the VAE encodes, cached as the images are, (B, C, H, W);
    - "values": what `reader` loads, at each use, (B, ...);
    - "mask": the image's mask at the size of its latents, cached as the masks are, (B, 1, H, W), 1 where at least half
      of it is white and 0 elsewhere.

    `reader` names the class that resizes, crops and transforms it ("module:Class"; see `modules.data.cache.inputs`).
    `file_setting` is the path of the setting that decides whether its file is read, if one does. With `follows_mask`,
    uses of an image that ignore its mask get a blank input. `is_mask`: it is the mask of what is inpainted. `channels`
    is None for as many as the latents have. With `follows_colour`, its colours are augmented as its image's are.

    `reference` is its number among the reference images of an editing model, from 1 on, and `fit` how these are brought
    to their size. An image with fewer of them has no such input, and is in batches with its like.
    """

    name: str
    label: str
    suffix: str = ""
    delivery: Literal["latents", "values", "mask"] = "latents"
    reader: str = "modules.data.cache.inputs:CompanionImage"
    file_setting: str = ""
    follows_mask: bool = False
    is_mask: bool = False
    channels: int | None = None
    follows_colour: bool = False
    reference: int = 0
    fit: ReferenceFit | None = None


EDITED_IMAGE = "edited_image"
"""The first reference image of an editing model: what it edits."""
REFERENCES = (EDITED_IMAGE, "edited_image_2", "edited_image_3")
"""The reference images of an editing model that gets several."""

INPUTS: dict[str, ModelInput] = {
    record.name: record
    for record in (
        ModelInput("mask", "Inpainting mask", delivery="mask", follows_mask=True, is_mask=True, channels=1),
        ModelInput(
            "mask_pixels",
            "Inpainting mask in pixels",
            delivery="values",
            reader="modules.data.cache.inputs:MaskPixels",
            follows_mask=True,
            is_mask=True,
            channels=64,
        ),
        ModelInput(
            "masked_image",
            "Conditioning image",
            suffix="-condlabel",
            reader="modules.data.cache.inputs:MaskedImage",
            file_setting="masks.custom_conditioning_image",
            follows_mask=True,
        ),
        ModelInput(
            "depth",
            "Depth map",
            suffix="-condlabel",
            delivery="values",
            reader="modules.data.depth:DepthMap",
            channels=1,
        ),
        *(
            ModelInput(
                name,
                label,
                suffix=suffix,
                reader="modules.data.cache.inputs:ReferenceImage",
                follows_colour=True,
                reference=number,
            )
            for number, (name, label, suffix) in enumerate(
                zip(
                    REFERENCES,
                    ("Reference image", "Second reference image", "Third reference image"),
                    ("-condlabel", "-condlabel2", "-condlabel3"),
                    strict=True,
                ),
                start=1,
            )
        ),
    )
}

NO_INPUTS: Mapping[str, Any] = MappingProxyType({})
"""The inputs of a model that has none."""


def references_of(inputs: Mapping[str, Value]) -> list[Value]:
    """Return the reference images among the inputs of a prediction, in their order."""
    return [inputs[name] for name in REFERENCES if name in inputs]


def inputs_by_name(names: Iterable[str]) -> tuple[ModelInput, ...]:
    """Return the records of inputs, in the order of their names. Raises KeyError for an unknown name."""
    return tuple(INPUTS[name] for name in names)


def companion_suffixes() -> tuple[str, ...]:
    """Return the ends of the names of masks and of inputs' files, with which no training image is named."""
    return tuple(dict.fromkeys((MASK_SUFFIX, *input_suffixes())))


def input_suffixes() -> tuple[str, ...]:
    """Return the ends of the names of inputs' files."""
    return tuple(dict.fromkeys(record.suffix for record in INPUTS.values() if record.suffix))
