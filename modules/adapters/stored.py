"""Adapter files as the layers of a loaded model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from modules.adapters.registry import ADAPTERS
from modules.adapters.start import AdapterContent
from modules.adapters.stored_header import reason_if_broken, reason_to_refuse
from modules.families.kinds.identify import identify
from modules.families.kinds.registry import serves_as
from modules.families.spec import LoraNaming
from modules.formats.adapter_file import read_adapter_file
from modules.formats.adapter_layers import AdapterLayer
from modules.system.errors import DarkroomError

_TEXT_MODEL = "text_model."


def read_adapter(path: Path, naming: LoraNaming, modules: Mapping[str, nn.Module]) -> AdapterContent:
    """Return the content of a file, its layers by the paths they have in `modules`, the model's parts by name.

    Raises DarkroomError if the file is not an adapter, is damaged, has values that are not finite, or is for another
    model, which lacks most of its layers.
    """
    kind = identify(path)
    if not serves_as(kind, "start of an adapter"):
        is_missing = kind.facts.get("defect") == "missing"
        message = kind.sentence if is_missing else f"{path.name} is not a supported adapter file. {kind.sentence}"
        raise DarkroomError(
            message, advice=f"Choose a file of one of these types: {', '.join(s.label for s in ADAPTERS.values())}."
        )
    content = read_adapter_file(path, naming.targets)
    refusal, advice = reason_to_refuse(path.name, len(content.layers), content.unplaced, kind.sentence)
    if refusal:
        raise DarkroomError(refusal, advice=advice)
    shapes = {(x.part, x.path): {name: tuple(f.shape) for name, f in x.factors.items()} for x in content.layers}
    broken, advice = reason_if_broken(path.name, shapes)
    if broken:
        raise DarkroomError(broken, advice=advice)
    for layer in content.layers:
        if not math.isfinite(layer.alpha or 0.0) or not all(map(_is_finite, layer.factors.values())):
            raise _not_finite(path, f"{layer.part}.{layer.path}")
    for name, tensor in content.extra_tensors.items():
        if not _is_finite(tensor):
            raise _not_finite(path, name)
    layers = tuple(_at_module_path(layer, modules, path) for layer in content.layers)
    return AdapterContent(path.name, layers, content.extra_tensors)


def _is_finite(tensor: torch.Tensor) -> bool:
    wide = tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize == 1 else tensor
    return bool(wide.isfinite().all())


def _not_finite(path: Path, where: str) -> DarkroomError:
    return DarkroomError(
        f"{path.name} has NaN or infinite values at {where}.",
        advice="Choose another file, such as an earlier save of the same training.",
    )


def _at_module_path(layer: AdapterLayer, modules: Mapping[str, nn.Module], file: Path) -> AdapterLayer:
    """Return a layer under its module's path; transformers 5.6 dropped the "text_model." that files have."""
    module = modules.get(layer.part)
    for path in (layer.path, layer.path.removeprefix(_TEXT_MODEL)):
        if module is not None and _has(module, path):
            return replace(layer, path=path)
    raise DarkroomError(f"{file.name} has a layer that this model lacks: {layer.part}.{layer.path}.")


def _has(module: nn.Module, path: str) -> bool:
    try:
        module.get_submodule(path)
    except AttributeError:
        return False
    return True
