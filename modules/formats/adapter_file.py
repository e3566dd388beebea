"""Reading adapter files of every form (`adapter_forms`): the layers of a model that a file changes, and the rest.

kohya's files have a scalar tensor `alpha` for each layer. PEFT's have none: rank and alpha are in the metadata under
`lora_adapter_metadata`, by part, or in a file `adapter_config.json` beside one that PEFT itself saved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from modules.formats.adapter_forms import RAW_PEFT, form_of
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import ALPHA, BUNDLED_EMBEDDING, DORA_SCALE, DOWN, damage_in, layer_and_factor
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets
from modules.formats.peft_settings import PEFT_SETTINGS, PeftAlphas
from modules.formats.stored_tensors import read_stored
from modules.system.errors import DarkroomError

_PEFT_CONFIG = "adapter_config.json"
_LARGEST_ALPHA = 1e6  # alphas are of the order of the rank


@dataclass(frozen=True, eq=False)
class AdapterFile:
    """The content of an adapter file; nothing of it is lost.

    `layers` are those that the model has. `extra_tensors` are all other tensors by their names in the file: bundled
    embeddings, and layers that the model does not have (`unplaced`, by their names in the file). `form` is a name in
    `adapter_forms.FORMS`.
    """

    layers: tuple[AdapterLayer, ...]
    extra_tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    form: str = ""
    unplaced: tuple[str, ...] = ()

    @property
    def embeddings(self) -> dict[str, torch.Tensor]:
        """The tensors of the bundled embeddings by their names in the file."""
        return {n: t for n, t in self.extra_tensors.items() if n.startswith(BUNDLED_EMBEDDING)}


def read_adapter_file(path: Path, targets: AdapterTargets) -> AdapterFile:
    """Return the content of an adapter file of any form, for a model with these layers.

    Raises DarkroomError where the file cannot be read or is damaged.
    """
    return adapter_file(*read_adapter_tensors(path), targets, where=path.name)


def read_adapter_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors and the metadata of an adapter file, with the settings that PEFT saved beside it.

    Raises DarkroomError where the file cannot be read.
    """
    stored, metadata = read_stored(path)
    beside = path.parent / _PEFT_CONFIG
    if PEFT_SETTINGS not in metadata and form_of(stored) == RAW_PEFT.name and beside.is_file():
        metadata = {**metadata, PEFT_SETTINGS: beside.read_text(encoding="utf-8", errors="replace")}
    return {name: tensor.make() for name, tensor in stored.items()}, metadata


def adapter_file(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], targets: AdapterTargets, *, where: str
) -> AdapterFile:
    """Return the content of an adapter file from its tensors; `where` is its name. See `read_adapter_file`."""
    by_layer: dict[str, dict[str, str]] = {}
    for name in sorted(tensors):
        layer, factor = layer_and_factor(name)
        if layer:
            by_layer.setdefault(layer, {})[factor] = name
    alphas = PeftAlphas(metadata)
    layers: dict[tuple[str, str], AdapterLayer] = {}
    placed: set[str] = set()
    unplaced = []
    for layer, names in by_layer.items():
        factors = {factor: tensors[name] for factor, name in names.items()}
        if not names.get(DORA_SCALE, DORA_SCALE).endswith(DORA_SCALE) and DOWN in factors:
            factors[DORA_SCALE] = _output_axis(factors[DORA_SCALE], factors[DOWN].ndim)
        shapes = {factor: tuple(tensor.shape) for factor, tensor in factors.items()}
        target = targets.find(layer, shapes)
        if target is None or (target.part, target.path) in layers:
            unplaced.append(layer)
            continue
        if damage := damage_in(shapes):
            raise DarkroomError(
                f"{where} is damaged at {target.part}.{target.path}: {damage}.", advice="Download it again."
            )
        layers[target.part, target.path] = _checked(_layer(target, factors, alphas), where)
        placed |= set(names.values())
    extra = {name: tensor for name, tensor in tensors.items() if name not in placed}
    return AdapterFile(tuple(layers.values()), extra, dict(metadata), form_of(tensors), tuple(unplaced))


def _layer(target: AdapterTarget, factors: dict[str, torch.Tensor], alphas: PeftAlphas) -> AdapterLayer:
    stored = factors.pop(ALPHA, None)
    alpha = None
    if stored is not None:
        if stored.numel() != 1:
            raise DarkroomError(
                f"The alpha of {target.part}.{target.path} is not one number: its shape is {tuple(stored.shape)}.",
                advice="Download the file again.",
            )
        alpha = float(stored)
    elif DOWN in factors:
        alpha = alphas.stated(target.part, target.path, int(factors[DOWN].shape[0]))
    return AdapterLayer(target.part, target.path, factors, alpha)


def _output_axis(magnitudes: torch.Tensor, ndim: int) -> torch.Tensor:
    """Return PEFT's magnitudes, of shape (out,) or (1, out, 1, 1), as a DoRA scale of shape (out, 1, ...)."""
    return magnitudes.reshape(-1, *(1 for _ in range(ndim - 1)))


def _checked(layer: AdapterLayer, where: str) -> AdapterLayer:
    alpha = layer.alpha or 0.0
    if not abs(alpha) <= _LARGEST_ALPHA:  # also true for NaN
        what = "a far too large value" if math.isfinite(alpha) else "NaN or infinite values"
        raise DarkroomError(
            f"{where} has {what} at {layer.part}.{layer.path}: its alpha is {alpha:g}.",
            advice="Choose another file, such as an earlier save of the same training, or download it again.",
        )
    return layer
