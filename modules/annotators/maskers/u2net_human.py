"""U2-Net for people (rembg): the foreground of an image, as the program rembg finds it."""

from __future__ import annotations

from modules.annotators.spec import ONNX, MaskerSpec, ModelFiles

_URL = "https://github.com/danielgatis/rembg/releases/download/v0.0.0/u2net_human_seg.onnx"

SPEC = MaskerSpec(
    "u2net_human",
    "U2-Net for people (rembg)",
    "The people in an image.",
    "modules.annotators.models.u2net:make",
    ModelFiles("", ("u2net_human_seg.onnx",), 176_000_000, url=_URL, md5="c09ddc2e0104f800e3e1bb4652583d1f"),
    "Apache-2.0",
    frozenset({"threshold"}),
    packages=(ONNX,),
)
