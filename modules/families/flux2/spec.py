"""FLUX.2 dev (Black Forest Labs, 2025): a transformer of 32 billion weights, whose prompts a Mistral-Small 3 reads.

It reads the guidance scale as an input.
"""

from typing import Literal

from modules.data.inputs import REFERENCES
from modules.diffusion.flow_convention import flow_matching
from modules.families.parts.flux2 import classes
from modules.families.parts.language_models import MISTRAL, chat_parts
from modules.families.settings import TrainingGuidance
from modules.families.spec import FamilySpec


class Flux2DevSettings(classes.Flux2Settings):
    """32 billion weights, distilled: for large cards, or quantized."""

    name: Literal["flux2"] = "flux2"
    guidance: TrainingGuidance = 1.0


_TEMPLATE_TOKENS = 36  # with the message of the system

FLUX2 = FamilySpec(
    name="flux2",
    label="FLUX.2 dev",
    settings=Flux2DevSettings,
    parts=chat_parts(classes.TRANSFORMER, MISTRAL, classes.VAE, reader="Mistral"),
    size_step_px=16,
    latents=classes.LATENTS,
    text=classes.prompts(_TEMPLATE_TOKENS),
    inputs={"edit": REFERENCES},
    process=flow_matching(classes.CONVENTION),
    sample_guidance=4.0,
    guidance="embedded",
    released="2025-11",
    ai_toolkit=("flux2",),
    kohya=("flux2", "flux_2", "flux2_dev", "dev"),  # the last is musubi-tuner's `model_version`
    references=classes.REFERENCE_SIZES,
)
