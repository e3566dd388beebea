"""The names of a loaded model in adapter files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from modules.formats.adapter_targets import AdapterTargets


@dataclass(frozen=True, slots=True)
class LoraNaming:
    """The names of a loaded model and its layers in LoRA files; the functions take a part and a dotted path.

    `model` is its name among the family's published models, `base_version` kohya's name, `architecture` ModelSpec's;
    `prediction` is its prediction type. `targets` are all its layers by every name that files of any form have for
    them, paths of text layers with "text_model."; `own_configs` are the configs of the parts as JSON, where the model
    has a different size than the published one and files must include them.
    """

    kohya_name: Callable[[str, str], str]
    peft_name: Callable[[str, str], str]
    comfy_name: Callable[[str, str], str]
    base_version: str
    architecture: str
    model: str
    targets: AdapterTargets
    prediction: str = "epsilon"
    own_configs: str = ""
    variant: str = ""
    """The variant of the model's files (`FileKind.variant`); empty for the base model."""
    is_v2: bool = False
    """kohya's `v2`: the only text encoder is OpenCLIP's."""
