"""CLIPSeg (Lüddecke and Ecker 2022): the part of an image that a text describes."""

from __future__ import annotations

from modules.annotators.spec import WEIGHTS, MaskerSpec, ModelFiles

SPEC = MaskerSpec(
    "clipseg",
    "CLIPSeg",
    "What a text describes, such as a face, or a red car. Several texts, separated by commas, are masked together.",
    "modules.annotators.models.clipseg:make",
    ModelFiles(
        "CIDAS/clipseg-rd64-refined",
        ("config.json",),
        603_000_000,
        weights=WEIGHTS,
        revision="999e0328d9e10b484360c477313983f9afdd7050",
    ),
    "Apache-2.0",
    frozenset({"prompts", "threshold"}),
)
