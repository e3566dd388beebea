"""The form of adapter files that each flow family has by default is the one that most programs load completely."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from modules.adapters.lora_layers import LORA_KIND
from modules.adapters.registry import ADAPTERS
from modules.adapters.start import tensors_to_write
from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.lora import adapter_loads
from modules.families.kinds.record import Loads
from modules.families.lora_naming import LoraNaming
from modules.families.parts.lora_names import comfy_naming, kohya_naming, peft_name
from modules.families.parts.single_file.models import shipped_configs
from modules.families.published import PublishedModel
from modules.families.registry import FAMILIES, files_of
from modules.formats.adapter_forms import FileForm
from modules.formats.adapter_layers import lora_layer
from modules.formats.checkpoint_header import CheckpointHeader
from modules.settings.layer_filter import EVERYTHING


def loads_of(model: PublishedModel, form: FileForm) -> dict[str, Loads]:
    """How programs load our LoRA of the usual layers of a published model's denoiser."""
    configs, denoiser = shipped_configs(model.name), FAMILIES[model.family].denoiser
    targets = model.adapter_targets(configs)
    kohya, comfy = kohya_naming(model.name, configs), comfy_naming(model.name, configs)
    naming = LoraNaming(kohya, peft_name, comfy, model.kohya_name, model.architecture, model.name, targets)
    usual = denoiser.model.layers.get(denoiser.model.layers_elsewhere, EVERYTHING)
    layers = [
        lora_layer(t.part, t.path, torch.zeros(1, t.weight[1]), torch.zeros(t.weight[0], 1), 1.0)
        for t in targets.all
        if t.part == denoiser.name and usual.takes(t.path)
    ]
    tensors, metadata = tensors_to_write(LORA_KIND, layers, None, form, naming)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    header = CheckpointHeader(Path("lora.safetensors"), "safetensors", shapes, {}, metadata)
    return {x.program: x for x in adapter_loads(header, FileKind("lora", "", model=model.name))}


@pytest.mark.parametrize("family", [name for name, spec in FAMILIES.items() if spec.process.flow is not None])
def test_the_usual_form_of_a_flow_family_loads_completely_in_the_most_programs(family: str) -> None:
    """Of the forms that ComfyUI loads completely, whichever of the family's models it is for."""
    complete: dict[str, int] = {}
    for form in ADAPTERS["lokr"].forms:  # any adapter can be written in these
        found = [loads_of(model, form) for model in files_of(family).models]
        if all(of_model["ComfyUI"].complete for of_model in found):
            complete[form] = sum(bool(x.complete) for of_model in found for x in of_model.values() if x.is_main)
    if not complete:  # a model that ComfyUI does not have
        complete = {"diffusers": 0}
    assert complete[FAMILIES[family].adapter_form] == max(complete.values())
