"""Diffusion-DPO: learns from pairs of a chosen and a rejected image (Wallace et al. 2023, arXiv 2311.12908)."""

from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Interval

from modules.objectives import rollout_fields as fields
from modules.objectives.spec import MethodGuide, MethodSpec, MethodStart
from modules.settings.field import Section, Setting, When, advanced_setting
from modules.settings.shared_types import UpTo1000

_WITH_REFERENCE = When("loss", ("sigmoid", "ipo"))


class Dpo(Section):
    """Learns from pairs of a chosen and a rejected image (Wallace et al. 2023)."""

    name: Literal["dpo"] = "dpo"
    loss: Annotated[
        Literal["sigmoid", "ipo", "mapo"],
        Setting(
            "Preference loss",
            "Diffusion-DPO prefers the chosen image more than the original model does. IPO also keeps the preference "
            "from growing without limit, which helps against overfitting. MaPO needs no original model, so a step is "
            "faster by a third; it also trains on the chosen images themselves.",
            choice_labels={"sigmoid": "Diffusion-DPO (sigmoid)", "ipo": "IPO", "mapo": "MaPO (no reference)"},
            choice_help={
                "sigmoid": "Prefers the chosen image more than the original model does.",
                "ipo": "The same, and keeps the preference from growing without limit, against overfitting.",
                "mapo": "Needs no original model, so a step is faster by a third; also trains on the chosen images.",
            },
        ),
    ] = "sigmoid"
    beta: Annotated[
        float,
        *Interval(gt=0, le=1_000_000),
        Setting(
            "Beta",
            "How strongly the model is kept close to the original one: a larger beta keeps it closer. Published values "
            "are 2000 for Stable Diffusion 1.5 and 5000 for SDXL. Gradients grow with it, so clipping them is normal.",
            applies_when=_WITH_REFERENCE,
        ),
    ] = 2000.0
    target_margin: Annotated[fields.TargetMargin, replace(fields.TARGET_MARGIN, applies_when=_WITH_REFERENCE)] = 0.0
    loss_noise: Annotated[
        Literal["fresh", "generated"],
        advanced_setting(
            "Noise in the loss",
            "The noise that the images of a pair get in the loss: new noise in each step, the same for both, or for "
            "each image the noise that it was sampled from (PNAPO). Pairs that a person chose in a run of online DPO "
            "have it in the run's folder choices/pairs; other pairs, and images that are cropped, resized or mirrored, "
            "get new noise. It suits flow models, with the family that sampled the images.",
            choice_labels={"fresh": "Fresh noise", "generated": "The image's own (PNAPO)"},
        ),
    ] = "fresh"
    label_smoothing: Annotated[
        float,
        *Interval(ge=0, le=0.5),
        advanced_setting(
            "Label smoothing",
            "The assumed share of pairs that are labelled the wrong way round. 0.1 helps with noisy choices.",
            applies_when=_WITH_REFERENCE,
        ),
    ] = 0.0
    sft_weight: Annotated[
        UpTo1000,
        advanced_setting(
            "SFT weight",
            "The weight of the denoising loss on the chosen images, which is added. It keeps the quality of the chosen "
            "images from falling together with the rejected images' probability.",
            applies_when=_WITH_REFERENCE,
        ),
    ] = 0.0
    mapo_beta: Annotated[
        float,
        *Interval(gt=0, le=1000),
        Setting(
            "MaPO beta",
            "The weight of the preference, compared to the denoising loss on the chosen images.",
            applies_when=When("loss", ("mapo",)),
        ),
    ] = 0.1


DPO = MethodSpec(
    "dpo",
    "Diffusion-DPO",
    "Learns from pairs of images to prefer the chosen to the rejected one.",
    Dpo,
    "trainer.methods.dpo:build",
    learns_from=lambda settings: "pairs",
    needs_reference=lambda settings: settings.loss != "mapo",
    is_shareable=lambda settings: True,
    ddpm_only=lambda settings: "MaPO" if settings.loss == "mapo" else "",
    guide=MethodGuide(
        needs=(
            "Pairs of a chosen and a rejected image for one caption: a concept of the type Preference pairs.",
            "At least 16 pairs per step, by accumulation, and a few hundred pairs in all. No reward model, no "
            "download.",
        ),
        watch={
            "implicit_accuracy": "Starts at 0.5 and rises to 0.6 to 0.8. Close to 1 the pairs are memorized.",
            "margin": "Rises steadily; with a target margin it stays there while beta falls.",
            "negative_margins": fields.NEGATIVE_MARGINS,
            "chosen_error": fields.CHOSEN_ERROR,
            "rejected_error": "Rises more than the error of the chosen images.",
        },
    ),
    sources={"pairs": MethodStart("Nothing is sampled, so its steps are short.", is_usual=True)},
)
