"""WD14 ViT tagger v2: tags of Danbooru, by SmilingWolf."""

from __future__ import annotations

from modules.annotators.spec import ONNX, CaptionerSpec, ModelFiles

SPEC = CaptionerSpec(
    "wd_vit_v2",
    "WD14 ViT tagger v2",
    "Tags for drawings and anime, separated by commas. The tagger of OneTrainer.",
    "modules.annotators.models.wd_tagger:make",
    ModelFiles(
        "SmilingWolf/wd-v1-4-vit-tagger-v2",
        ("model.onnx", "selected_tags.csv"),
        373_000_000,
        revision="1f3f3e8ae769634e31e1ef696df11ec37493e4f2",
    ),
    "Apache-2.0",
    frozenset({"threshold", "character_threshold", "excluded_tags", "keep_underscores"}),
    packages=(ONNX,),
)
