"""U2-Net (rembg): the foreground of an image, as the program rembg finds it."""

from __future__ import annotations

from modules.annotators.spec import ONNX, MaskerSpec, ModelFiles

_URL = "https://github.com/danielgatis/rembg/releases/download/v0.0.0/u2net.onnx"

SPEC = MaskerSpec(
    "u2net",
    "U2-Net (rembg)",
    "The foreground: whatever stands out.",
    "modules.annotators.models.u2net:make",
    ModelFiles("", ("u2net.onnx",), 176_000_000, url=_URL, md5="60024c5c889badc19c04ad937298a77b"),
    "Apache-2.0",
    frozenset({"threshold"}),
    packages=(ONNX,),
)
