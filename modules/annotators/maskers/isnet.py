"""IS-Net (rembg): the foreground of an image, as the program rembg finds it."""

from __future__ import annotations

from modules.annotators.spec import ONNX, MaskerSpec, ModelFiles

_URL = "https://github.com/danielgatis/rembg/releases/download/v0.0.0/isnet-general-use.onnx"

SPEC = MaskerSpec(
    "isnet",
    "IS-Net (rembg)",
    "The foreground, with finer edges than U2-Net; slower.",
    "modules.annotators.models.u2net:make_isnet",
    ModelFiles("", ("isnet-general-use.onnx",), 179_000_000, url=_URL, md5="fc16ebd8b0c10d971d3513d564d01e29"),
    "Apache-2.0",
    frozenset({"threshold"}),
    packages=(ONNX,),
)
