"""LoRA files as the layers of a loaded model: read in any form, put into an adapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from modules.adapters.lora import ADAPTER, LoraAdapter
from modules.families.kinds.identify import identify
from modules.families.spec import LoraNaming
from modules.formats.lora_files import LoraLayerWeights, from_kohya, from_peft
from modules.formats.stored_tensors import read_stored
from modules.system.errors import DarkroomError

_TEXT_MODEL = "text_model."


def read_lora(path: Path, naming: LoraNaming, modules: Mapping[str, nn.Module]) -> dict[str, list[LoraLayerWeights]]:
    """Return a LoRA's layers by part, their paths as in `modules`, the model's parts by name.

    Reads kohya form, with diffusers' or the original names for the UNet, and diffusers/PEFT form. Raises DarkroomError
    where the file is no plain LoRA, or one of another model.
    """
    kind = identify(path)
    if kind.kind != "lora":
        is_missing = kind.facts.get("defect") == "missing"
        message = kind.sentence if is_missing else f"{path.name} is no LoRA. {kind.sentence}"
        raise DarkroomError(message, advice="Choose a LoRA file.")
    stored, metadata = read_stored(path)
    tensors = {name: tensor.make() for name, tensor in stored.items()}
    is_kohya = any(name.endswith(".lora_down.weight") and "." not in name.split(".lora_down")[0] for name in tensors)
    layers = from_kohya(tensors, naming.kohya_places) if is_kohya else from_peft(tensors, metadata)
    by_part: dict[str, list[LoraLayerWeights]] = {}
    for layer in layers:
        by_part.setdefault(layer.part, []).append(_placed(layer, modules, path))
    return by_part


def fill(adapter: LoraAdapter, layers: Sequence[LoraLayerWeights], *, where: str) -> None:
    """Give an adapter the weights of a file named `where`; layers that the file does not have stay as they are.

    The strength stays what it was: where the alpha is another, the up matrix is scaled. Raises DarkroomError where the
    adapter lacks a layer or has another rank.
    """
    parameters = adapter.parameters()
    shape = adapter.shape
    with torch.no_grad():
        for layer in layers:
            names = [f"{adapter.part}.{layer.path}.lora_{x}.{ADAPTER}.weight" for x in "AB"]
            if names[0] not in parameters:
                raise DarkroomError(
                    f"{where} has a LoRA on {adapter.part}.{layer.path}, which this run leaves out.",
                    advice="Choose all layers, on the Training page.",
                )
            down, up = (parameters[n] for n in names)
            if down.shape != layer.down.shape or up.shape != layer.up.shape:
                raise DarkroomError(
                    f"{where} has the rank {layer.rank} at {adapter.part}.{layer.path}, this run's LoRA has "
                    f"{shape.rank}.",
                    advice=f"Set the rank to {layer.rank}.",
                )
            down.copy_(layer.down)
            up.copy_(layer.up.float() * ((layer.alpha / layer.rank) / (shape.alpha / shape.rank)))


def _placed(layer: LoraLayerWeights, modules: Mapping[str, nn.Module], file: Path) -> LoraLayerWeights:
    """Return a layer under the path that its module has; transformers 5.6 dropped the "text_model." of files."""
    module = modules.get(layer.part)
    for path in (layer.path, layer.path.removeprefix(_TEXT_MODEL)):
        if module is not None and _has(module, path):
            return LoraLayerWeights(layer.part, path, layer.down, layer.up, layer.alpha)
    raise DarkroomError(f"{file.name} has a layer that this model lacks: {layer.part}.{layer.path}.")


def _has(module: nn.Module, path: str) -> bool:
    try:
        module.get_submodule(path)
    except AttributeError:
        return False
    return True
