"""BLIP large (Li et al. 2022, "BLIP"): one sentence."""

from __future__ import annotations

from modules.annotators.spec import CaptionerSpec, ModelFiles

SPEC = CaptionerSpec(
    "blip_large",
    "BLIP large",
    "A short sentence for photographs.",
    "modules.annotators.models.blip:make",
    ModelFiles(
        "Salesforce/blip-image-captioning-large",
        ("config.json",),
        1_880_000_000,
        weights=("model.safetensors", "pytorch_model.bin"),
        revision="353689b859fcf0523410b1806dace5fb46ecdf41",
    ),
    "BSD-3-Clause",
    frozenset({"initial"}),
)
