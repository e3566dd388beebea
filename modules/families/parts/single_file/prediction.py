"""The prediction type of a model, from its file.

Programs use different markers. They are checked in this order: a sidecar .yaml (A1111, Forge), the empty tensors
`v_pred` and `ztsnr` (ComfyUI, Forge), `modelspec.prediction_type` (ModelSpec 1.0.1) or `modelspec.predict_key`
(ComfyUI), and last the weights, by the model's own rule. `formats/program_table.py` lists which program reads
which of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from modules.families.kinds.file_kind import Prediction
from modules.families.parts.single_file.record import PredictionMark
from modules.formats.checkpoint_header import CheckpointHeader
from modules.system.regular_files import read_regular

VELOCITY_TENSOR = "v_pred tensor"
"""The marker of a file with the empty tensor `v_pred`."""

ZERO_SNR_LINE = "zero_terminal_snr: true\n"
"""The line of a sidecar that states zero terminal SNR: outside of `model`, where programs that do not know it look at
nothing."""

SIDECAR_START = "# Written by Darkroom. Keep this file beside the model: programs read its prediction type here.\n"

_MAX_YAML_BYTES = 200_000
_V_WORDS = {"v", "v_prediction", "vpred", "v-prediction"}
# Each takes linear time on any text: [ \t] does not match the end of a line, and a key is matched as a whole.
_PARAMETERIZATION = re.compile(
    r"""^[ \t]*(?:parameterization|prediction_type)[ \t]*:[ \t]*["']?([\w-]+)""", re.MULTILINE
)
_SCALING = re.compile(r"\b(V|Eps)Scaling\b")  # SDXL's yaml names a class instead
_TRUE = re.compile(r"^[ \t]*(\w+)[ \t]*:[ \t]*[Tt]rue", re.MULTILINE)
_ZERO_SNR = ("ztsnr", "zero_terminal_snr", "zero_snr")


PredictionOf = Callable[[CheckpointHeader], PredictionMark | None]
"""From the header of a file to its prediction type, where its weights tell it."""


def find_prediction(header: CheckpointHeader, from_weights: PredictionOf | None = None) -> PredictionMark:
    """Return a checkpoint's prediction type; empty where there is no marker."""
    zero_snr = "ztsnr" in header.shapes
    sidecar = read_sidecar(header.path)
    if sidecar is not None and sidecar.prediction:
        has_both = "v_pred" in header.shapes and sidecar.prediction == "v_prediction"
        marker = f"{VELOCITY_TENSOR}, {sidecar.marker}" if has_both else sidecar.marker
        return PredictionMark(sidecar.prediction, zero_snr or sidecar.zero_snr, marker)
    if {"edm_mean", "edm_vpred.sigma_max"} & header.shapes.keys():
        return PredictionMark("edm", False, "EDM tensors")
    if "v_pred" in header.shapes:
        return PredictionMark("v_prediction", zero_snr, VELOCITY_TENSOR)
    for key in ("modelspec.prediction_type", "modelspec.predict_key"):
        word = header.metadata.get(key, "").lower()
        if word:
            return PredictionMark("v_prediction" if word in _V_WORDS else "epsilon", zero_snr, key)
    mark = from_weights(header) if from_weights is not None else None
    return PredictionMark("", zero_snr, "") if mark is None else replace(mark, zero_snr=zero_snr)


def read_sidecar(path: Path) -> PredictionMark | None:
    """Return the prediction type in the .yaml next to a checkpoint, or None without a readable one."""
    for name in (path.with_suffix(".yaml"), path.with_suffix(".yml")):
        try:
            text = read_regular(name, _MAX_YAML_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError):
            continue
        match = _PARAMETERIZATION.search(text)
        prediction: Prediction = ""
        if match:
            prediction = "v_prediction" if match[1].lower() in _V_WORDS else "epsilon"
        elif scaling := _SCALING.search(text):
            prediction = "v_prediction" if scaling[1] == "V" else "epsilon"
        zero_snr = any(word in key for key in _TRUE.findall(text) for word in _ZERO_SNR)
        return PredictionMark(prediction, zero_snr, name.name)
    return None


def is_own_sidecar(path: Path) -> bool:
    """Whether a .yaml was written by us."""
    try:
        with path.open("rb") as file:
            return file.read(len(SIDECAR_START)) == SIDECAR_START.encode()
    except OSError:
        return False
