"""What a model predicts, as far as its file tells.

No consumer agrees with another here; the markers, in the order they are believed: a sidecar .yaml (A1111, Forge), the
empty tensors `v_pred` and `ztsnr` (ComfyUI, Forge, A1111), `modelspec.prediction_type` (ModelSpec 1.0.1) or
`modelspec.predict_key` (ComfyUI); for SD 2 the spread of one norm's biases (ComfyUI) or the step 875000 of the
published 512 model (diffusers). Torch-free.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from modules.formats.checkpoint_header import CheckpointHeader, read_values
from modules.formats.file_kind import Prediction

SD2_DETECTOR = "model.diffusion_model.output_blocks.11.1.transformer_blocks.0.norm1.bias"
_SD2_V_SPREAD = 0.09
_SD2_EPSILON_STEP = 875_000
_MAX_YAML_BYTES = 200_000
_V_WORDS = {"v", "v_prediction", "vpred", "v-prediction"}
_PARAMETERIZATION = re.compile(r"""^\s*(?:parameterization|prediction_type)\s*:\s*["']?([\w-]+)""", re.MULTILINE)
_DISCRETE_V = re.compile(r"\bVScaling\b")  # SDXL's yaml names a class instead
_ZERO_SNR = re.compile(r"^\s*\w*(?:ztsnr|zero_terminal_snr|zero_snr)\w*\s*:\s*[Tt]rue", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Told:
    """What a file tells of its prediction, and by what sign."""

    prediction: Prediction
    zero_snr: bool
    detector: str


def told_prediction(header: CheckpointHeader, model: str) -> Told:
    """Return what a checkpoint predicts; an empty prediction where nothing tells."""
    zero_snr = "ztsnr" in header.shapes
    sidecar = read_sidecar(header.path)
    if sidecar is not None and sidecar.prediction:
        return Told(sidecar.prediction, zero_snr or sidecar.zero_snr, sidecar.detector)
    if {"edm_mean", "edm_vpred.sigma_max"} & header.shapes.keys():
        return Told("edm", False, "EDM tensors")
    if "v_pred" in header.shapes:
        return Told("v_prediction", zero_snr, "v_pred tensor")
    for key in ("modelspec.prediction_type", "modelspec.predict_key"):
        word = header.metadata.get(key, "").lower()
        if word:
            return Told("v_prediction" if word in _V_WORDS else "epsilon", zero_snr, key)
    if model.startswith("sd2"):
        return _sd2(header, zero_snr)
    return Told("", zero_snr, "")


def read_sidecar(path: Path) -> Told | None:
    """Return what the .yaml beside a checkpoint tells, or None where there is none that can be read."""
    for name in (path.with_suffix(".yaml"), path.with_suffix(".yml")):
        try:
            if name.stat().st_size > _MAX_YAML_BYTES:
                continue
            text = name.read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError):
            continue
        found = _PARAMETERIZATION.search(text)
        prediction: Prediction = ""
        if found:
            prediction = "v_prediction" if found[1].lower() in _V_WORDS else "epsilon"
        elif _DISCRETE_V.search(text):
            prediction = "v_prediction"
        return Told(prediction, bool(_ZERO_SNR.search(text)), name.name)
    return None


def _sd2(header: CheckpointHeader, zero_snr: bool) -> Told:
    if header.values.get("global_step") == _SD2_EPSILON_STEP:
        return Told("epsilon", zero_snr, "global_step")
    values = read_values(header.path, SD2_DETECTOR) if SD2_DETECTOR in header.shapes else None
    if values is None or values.size == 0:
        return Told("", zero_snr, "")
    return Told("v_prediction" if float(values.std()) > _SD2_V_SPREAD else "epsilon", zero_snr, "norm biases")
