"""BLIP base (Li et al. 2022, "BLIP"): one sentence."""

from __future__ import annotations

from modules.annotators.spec import CaptionerSpec, ModelFiles

SPEC = CaptionerSpec(
    "blip_base",
    "BLIP base",
    "A short sentence for photographs. Fast.",
    "modules.annotators.models.blip:make",
    ModelFiles(
        "Salesforce/blip-image-captioning-base",
        ("config.json",),
        990_000_000,
        weights=("model.safetensors", "pytorch_model.bin"),
        revision="82a37760796d32b1411fe092ab5d4e227313294b",
    ),
    "BSD-3-Clause",
    frozenset({"initial"}),
)
