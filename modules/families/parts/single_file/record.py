"""The record of a model's original layout, which its family's files fill in. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from modules.families.kinds.file_kind import Prediction
from modules.families.parts.single_file.slots import Slot
from modules.formats.checkpoint_header import CheckpointHeader

Configs = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class PartLayout:
    """One part: its name in diffusers, its prefix in the original layout, and the slots of its tensors."""

    name: str
    prefix: str
    slots: tuple[Slot, ...]
    is_open_clip: bool = False


@dataclass(frozen=True, slots=True)
class TextPlace:
    """A text encoder in the original layout: our name, its prefix, its naming, whether it has a projection."""

    part: str
    prefix: str
    is_open_clip: bool = False
    has_projection: bool = False


@dataclass(frozen=True, slots=True)
class PredictionMark:
    """The prediction type of a file, and the marker it was found by."""

    prediction: Prediction
    zero_snr: bool
    marker: str


def _no_sidecar(configs: Configs, prediction: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class SingleFile:
    """The layout of a model in a single file of the original (LDM) layout.

    `text` lists its encoders; a file is of this model if a name starts with one of `markers`. `has_labels`: the UNet
    has a label embedding, which identifies a file with only a UNet of unusual width. `velocity_model` is the published
    model of a file with v-prediction; `is_ambiguous`: a file without a marker may have either prediction type, and
    `prediction_from_weights(header)` then derives it from the weights where possible. `sidecar(configs, prediction)` is
    the text of the .yaml that the file needs, empty where it needs none; `velocity_tensors`: empty tensors in the file
    mark v-prediction. `beside` are the prefixes of networks that the files of a variant have beside the model, such as
    the depth estimator: they are kept, never run.
    """

    text: tuple[TextPlace, ...]
    markers: tuple[str, ...]
    has_labels: bool = False
    velocity_model: str = ""
    is_ambiguous: bool = False
    prediction_from_weights: Callable[[CheckpointHeader], PredictionMark | None] | None = None
    sidecar: Callable[[Configs, str], str] = _no_sidecar
    velocity_tensors: bool = False
    beside: Mapping[str, str] = field(default_factory=dict)
