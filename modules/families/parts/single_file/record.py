"""What the original layout of a model is: the record that a family's files name it by. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from modules.families.kinds.file_kind import Prediction
from modules.families.parts.single_file.slots import Slot
from modules.formats.checkpoint_header import CheckpointHeader

Configs = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class PartLayout:
    """One part: its name in diffusers, its prefix in the original layout, and the places of its tensors."""

    name: str
    prefix: str
    slots: tuple[Slot, ...]
    is_open_clip: bool = False


@dataclass(frozen=True, slots=True)
class TextPlace:
    """A text encoder in the original layout: our name, its prefix, whose naming it has, whether it has a projection."""

    part: str
    prefix: str
    is_open_clip: bool = False
    has_projection: bool = False


@dataclass(frozen=True, slots=True)
class PredictionMark:
    """What a file tells of its prediction, and by what it does."""

    prediction: Prediction
    zero_snr: bool
    detector: str


def _no_sidecar(configs: Configs, prediction: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class SingleFile:
    """How a model stands in one file of the original (LDM) layout.

    `text` places its encoders; a file is the model's where one of `markers` begins a name. `has_labels`: the UNet has a
    label embedding, which tells such models apart where the UNet is alone and of unusual width. `velocity_model` is the
    published model it is where it predicts velocity; `is_silent` says that a file without any mark may predict either,
    `untold(header)` looks at the weights then, as far as they tell. `sidecar(configs, prediction)` is the text of the
    .yaml that has to lie beside it, empty where none has to; `velocity_tensors` says that empty tensors in the file
    mark velocity.
    """

    text: tuple[TextPlace, ...]
    markers: tuple[str, ...]
    has_labels: bool = False
    velocity_model: str = ""
    is_silent: bool = False
    untold: Callable[[CheckpointHeader], PredictionMark | None] | None = None
    sidecar: Callable[[Configs, str], str] = _no_sidecar
    velocity_tensors: bool = False
