"""Readable text: whether text recognition finds the quoted text of the prompt in the image."""

from __future__ import annotations

from modules.rewards.spec import RewardSpec
from modules.system.package import Package

SPEC = RewardSpec(
    "ocr",
    "Readable text (OCR)",
    'Whether the quoted text of a prompt, as in: a sign with the word "OPEN", is readable in the image. Prompts '
    "without quoted text have no score. Needs the packages rapidocr (27 MB with its models, Apache-2.0) and "
    "onnxruntime (MIT).",
    "modules.rewards.models.ocr:make",
    "0 to 1 (completely readable)",
    is_differentiable=False,
    packages=(Package("rapidocr", extra="ocr"), Package("onnxruntime", extra="ocr")),
)
