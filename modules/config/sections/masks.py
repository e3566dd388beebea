"""Masks: which regions of the images are trained."""

from typing import Annotated, ClassVar

from modules.settings.field import Section, When, advanced_setting
from modules.settings.shared_types import Fraction, UpTo1000

_MASKED = When("enabled", (True,))


class Masks(Section):
    """Training on regions of images. The mask of cat.jpg is cat-masklabel.png next to it."""

    group: ClassVar[str] = "Masks"

    enabled: Annotated[
        bool,
        advanced_setting(
            "Masked training",
            "White areas of an image's mask have full weight, black areas a small one. An image without a mask "
            "has full weight everywhere. The validation loss ignores masks, the weighted validation loss uses them.",
        ),
    ] = False
    unmasked_weight: Annotated[
        Fraction,
        advanced_setting(
            "Unmasked weight",
            "The loss weight of the area outside the mask: the lowest weight that any place of an image has.",
            applies_when=_MASKED,
        ),
    ] = 0.1
    unmasked_probability: Annotated[
        Fraction,
        advanced_setting(
            "Unmasked probability",
            "With masked training, the probability that a use of an image ignores its mask, drawn anew each time. An "
            "inpainting model then inpaints the whole image.",
        ),
    ] = 0.0
    normalize_area_loss: Annotated[
        bool,
        advanced_setting(
            "Normalize masked area loss",
            "Divides each image's loss by the mean of its weights: small masks count as much as large ones.",
            applies_when=_MASKED,
        ),
    ] = False
    prior_preservation_weight: Annotated[
        UpTo1000,
        advanced_setting(
            "Masked prior preservation",
            "How strongly the model is kept at its original prediction outside the mask. Each step predicts twice. A "
            "fine-tune needs memory for a copy of its trained weights.",
            applies_when=_MASKED,
        ),
    ] = 0.0
    custom_conditioning_image: Annotated[
        bool,
        advanced_setting(
            "Custom conditioning image",
            "For inpainting models: cat-condlabel.png next to cat.jpg is the conditioning image, in place of the image "
            "without its masked area.",
        ),
    ] = False

    @property
    def preservation_weight(self) -> float:
        """The weight of prior preservation in the loss: 0 if all areas are trained with full weight."""
        return self.prior_preservation_weight if self.unmasked_weight < 1 else 0.0
