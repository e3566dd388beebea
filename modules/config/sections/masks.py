"""Masks: which regions of the images count."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le

from modules.settings.field import Section, Setting, When

_MASKED = When("enabled", (True,))


class Masks(Section):
    """Learning from regions of images. A mask is an image beside the image: cat-masklabel.png for cat.jpg."""

    enabled: Annotated[
        bool,
        Setting(
            "Learn from masked regions",
            "What is white in an image's mask counts in full, what is black little. An image without a mask counts "
            "as a whole.",
            group="Masks",
            level="advanced",
            not_yet="refused",
        ),
    ] = False
    unmasked_weight: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting(
            "Weight outside the mask",
            "How much what is black still counts.",
            group="Masks",
            level="advanced",
            applies_when=_MASKED,
        ),
    ] = 0.1
    unmasked_probability: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting(
            "Steps without a mask",
            "The share of steps that take the whole image. Inpainting models alone use it.",
            group="Masks",
            level="advanced",
            applies_when=_MASKED,
        ),
    ] = 0.1
    normalize_area_loss: Annotated[
        bool,
        Setting(
            "Same weight for small masks",
            "Divides the loss by the share of the image that counts, and small masks teach as much as large ones.",
            group="Masks",
            level="advanced",
            applies_when=_MASKED,
        ),
    ] = False
    prior_preservation_weight: Annotated[
        float,
        Ge(0),
        Le(1000),
        Setting(
            "Keep the rest as it was",
            "Outside the mask the model is held to what it predicted before training, this strongly. For adapters.",
            group="Masks",
            level="advanced",
            applies_when=_MASKED,
        ),
    ] = 0.0
    custom_conditioning_image: Annotated[
        bool,
        Setting(
            "Own images to paint into",
            "An inpainting model is shown cat-condlabel.png beside cat.jpg, in place of the image with a hole.",
            group="Masks",
            level="advanced",
            not_yet="refused",
        ),
    ] = False
