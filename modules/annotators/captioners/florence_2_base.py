"""Florence-2 base (Xiao et al. 2023, "Florence-2"): from one sentence to a paragraph."""

from __future__ import annotations

from modules.annotators.spec import CaptionerSpec, ModelFiles

SPEC = CaptionerSpec(
    "florence_2_base",
    "Florence-2 base",
    "Sentences for any image, as short or as detailed as chosen.",
    "modules.annotators.models.florence:make",
    ModelFiles(
        "florence-community/Florence-2-base",
        ("config.json",),
        weights=("model.safetensors", "pytorch_model.bin"),
        revision="00921df66db728a9ceb750f5eca43e5c203a2051",
    ),
    "MIT",
    frozenset({"detail"}),
)
