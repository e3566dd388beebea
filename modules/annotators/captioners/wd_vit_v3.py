"""WD ViT tagger v3: tags of Danbooru, by SmilingWolf."""

from __future__ import annotations

from modules.annotators.spec import ONNX, CaptionerSpec, ModelFiles

SPEC = CaptionerSpec(
    "wd_vit_v3",
    "WD ViT tagger v3",
    "Tags for drawings and anime, separated by commas. Fast.",
    "modules.annotators.models.wd_tagger:make",
    ModelFiles(
        "SmilingWolf/wd-vit-tagger-v3",
        ("model.onnx", "selected_tags.csv"),
        379_000_000,
        revision="7f6b584d0bd3f55c4531f14ba3d4761b2bccdc0f",
    ),
    "Apache-2.0",
    frozenset({"threshold", "character_threshold", "excluded_tags", "keep_underscores"}),
    packages=(ONNX,),
)
