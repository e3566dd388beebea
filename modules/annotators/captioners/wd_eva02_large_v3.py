"""WD EVA02-Large tagger v3: tags of Danbooru, by SmilingWolf."""

from __future__ import annotations

from modules.annotators.spec import ONNX, CaptionerSpec, ModelFiles

SPEC = CaptionerSpec(
    "wd_eva02_large_v3",
    "WD EVA02-Large tagger v3",
    "Tags for drawings and anime, separated by commas. The most accurate of them, and the slowest.",
    "modules.annotators.models.wd_tagger:make",
    ModelFiles(
        "SmilingWolf/wd-eva02-large-tagger-v3",
        ("model.onnx", "selected_tags.csv"),
        1_260_000_000,
        revision="b25b82a03f7282e41aa2f257a52c7583b710bd1c",
    ),
    "Apache-2.0",
    frozenset({"threshold", "character_threshold", "excluded_tags", "keep_underscores"}),
    packages=(ONNX,),
)
