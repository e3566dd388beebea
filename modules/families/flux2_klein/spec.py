"""FLUX.2 klein (Black Forest Labs, 2026): FLUX.2 with 4 or 9 billion weights, whose prompts a Qwen3 reads.

The base models are for training, and are sampled with a guidance scale; klein itself was distilled to 4 steps without.
"""

from typing import Literal

from modules.data.inputs import REFERENCES
from modules.diffusion.flow_convention import flow_matching
from modules.families.distilled import DistilledSpec
from modules.families.parts.flux2 import classes
from modules.families.parts.language_models import QWEN3, chat_parts
from modules.families.spec import FamilySpec


class Flux2KleinSettings(classes.Flux2Settings):
    """4 or 9 billion weights; base models, and distilled ones for few steps."""

    name: Literal["flux2_klein"] = "flux2_klein"


_TEMPLATE_TOKENS = 12

FLUX2_KLEIN = FamilySpec(
    name="flux2_klein",
    label="FLUX.2 klein",
    settings=Flux2KleinSettings,
    parts=chat_parts(classes.TRANSFORMER, QWEN3, classes.VAE, reader="Qwen3"),
    size_step_px=16,
    latents=classes.LATENTS,
    text=classes.prompts(_TEMPLATE_TOKENS),
    inputs={"edit": REFERENCES},
    process=flow_matching(classes.CONVENTION),
    sample_guidance=4.0,
    distilled=DistilledSpec(
        ("klein-4b", "klein-9b", "klein_4b", "klein_9b"),
        "Train on FLUX.2 klein base, and use the result with klein; both have the same layers. Training klein itself "
        "gives gray or collapsed images, since its four steps do not follow a flow. klein is sampled in 4 steps "
        "with a guidance of 1.",
        index_key="is_distilled",
        undone_words=("base",),
        steps=4,
        is_refused=True,
        published=frozenset(
            name.format(size)
            for size in ("4b", "9b")
            for name in (
                *("black-forest-labs/flux.2-klein-{}", "black-forest-labs/flux.2-klein-{}-fp8"),
                *("black-forest-labs/flux.2-klein-{}-nvfp4", "flux-2-klein-{}.safetensors"),
                *("flux-2-klein-{}-fp8.safetensors", "flux-2-klein-{}-nvfp4.safetensors"),
            )
        ),
    ),
    released="2025-11",
    ai_toolkit=("flux2_klein_4b", "flux2_klein_9b"),
    kohya=(
        *("flux2_klein", "flux2_klein_4b", "flux2_klein_9b"),
        *("klein_base_4b", "klein_base_9b", "klein_4b", "klein_9b"),  # musubi-tuner's `model_version`
    ),
    references=classes.REFERENCE_SIZES,
)
