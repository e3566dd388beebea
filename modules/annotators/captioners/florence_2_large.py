"""Florence-2 large (Xiao et al. 2023, "Florence-2"): from one sentence to a paragraph."""

from __future__ import annotations

from modules.annotators.spec import CaptionerSpec, ModelFiles

SPEC = CaptionerSpec(
    "florence_2_large",
    "Florence-2 large",
    "Sentences for any image, as short or as detailed as chosen. More accurate than the base model.",
    "modules.annotators.models.florence:make",
    ModelFiles(
        "florence-community/Florence-2-large",
        ("config.json",),
        weights=("model.safetensors", "pytorch_model.bin"),
        revision="4271c66b88cdbc05735372ec13b2360108de5317",
    ),
    "MIT",
    frozenset({"detail"}),
)
