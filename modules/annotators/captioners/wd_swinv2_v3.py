"""WD SwinV2 tagger v3: tags of Danbooru, by SmilingWolf."""

from __future__ import annotations

from modules.annotators.spec import ONNX, CaptionerSpec, ModelFiles

SPEC = CaptionerSpec(
    "wd_swinv2_v3",
    "WD SwinV2 tagger v3",
    "Tags for drawings and anime, separated by commas.",
    "modules.annotators.models.wd_tagger:make",
    ModelFiles(
        "SmilingWolf/wd-swinv2-tagger-v3",
        ("model.onnx", "selected_tags.csv"),
        467_000_000,
        revision="627aef95638667ddcaa3ac8ae625e88ea5b02f51",
    ),
    "Apache-2.0",
    frozenset({"threshold", "character_threshold", "excluded_tags", "keep_underscores"}),
    packages=(ONNX,),
)
