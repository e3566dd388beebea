"""Reading adapter files of every form (`adapter_forms`): the layers of a model that a file changes, and the rest.

kohya's files have a scalar tensor `alpha` for each layer. PEFT's have none: rank and alpha are in the metadata under
`lora_adapter_metadata`, by part, or in a file `adapter_config.json` next to one that PEFT itself saved.

The factors of a layer are as in kohya's and LyCORIS' files, whatever program wrote them: a layer that another program
computes with other factors is computed with these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from modules.formats.adapter_damage import LARGEST_ALPHA, damage_in, damage_of_alpha
from modules.formats.adapter_forms import form_of
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import BUNDLED_EMBEDDING, DOWN, tensors_by_layer
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets
from modules.formats.adapter_types import ALPHA, DORA_SCALE, adapter_type
from modules.formats.fused_changes import divide
from modules.formats.fused_layers import UNDIVIDED_ADVICE, ranks_in, undivided_message, why_undivided
from modules.formats.peft_settings import PeftAlphas, doubt_about_alpha, with_peft_settings
from modules.formats.stored_tensors import read_stored, require_memory
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory


@dataclass(frozen=True, eq=False)
class AdapterFile:
    """The complete content of an adapter file.

    `layers` are the layers that the model has. `extra_tensors` are all other tensors by their names in the file:
    bundled embeddings, and layers that the model does not have (`unplaced`, by their names in the file). `form` is a
    name in `adapter_forms.FORMS`.
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

    @property
    def doubt(self) -> str:
        """A sentence about an unknown strength of the file; empty if it is known."""
        return doubt_about_alpha(self.form, self.metadata)


def read_adapter_file(path: Path, targets: AdapterTargets) -> AdapterFile:
    """Return the content of an adapter file of any form, for a model with these layers.

    Raises DarkroomError if the file cannot be read or is damaged.
    """
    return adapter_file(*read_adapter_tensors(path), targets, where=path.name)


def read_adapter_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors and the metadata of an adapter file, with the settings that PEFT saved next to it.

    Raises DarkroomError if the file cannot be read, or is larger than the free memory.
    """
    stored, metadata = read_stored(path)
    require_memory(sum(tensor.num_bytes for tensor in stored.values()), path)
    metadata = dict(with_peft_settings(path, stored, metadata))
    return {name: tensor.make() for name, tensor in stored.items()}, metadata


def adapter_file(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], targets: AdapterTargets, *, where: str
) -> AdapterFile:
    """Return the content of an adapter file from its tensors; `where` is its name. See `read_adapter_file`."""
    by_layer = tensors_by_layer(sorted(tensors))
    alphas, ranks = PeftAlphas(metadata), ranks_in(metadata)
    layers: dict[tuple[str, str], AdapterLayer] = {}
    placed: set[str] = set()
    unplaced = []
    for layer, names in by_layer.items():
        factors = {factor: tensors[name] for factor, name in names.items()}
        if not names.get(DORA_SCALE, DORA_SCALE).endswith(DORA_SCALE) and DOWN in factors:
            factors[DORA_SCALE] = _output_axis(factors[DORA_SCALE], factors[DOWN].ndim)
        shapes = {factor: tuple(tensor.shape) for factor, tensor in factors.items()}
        target = targets.find(layer, shapes)
        if target is None or any((t.part, t.path) in layers for t in target.pieces or (target,)):
            unplaced.append(layer)
            continue
        if damage := damage_in(shapes):
            raise DarkroomError(
                f"{where} is damaged at {target.part}.{target.path}: {damage}.", advice="Download it again."
            )
        changed = _check_layer(_layer(target, factors, alphas), where)
        for piece in _divide_layer(changed, target, ranks.get(target.path, ()), where) if target.pieces else (changed,):
            layers[piece.part, piece.path] = piece
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
    known = adapter_type(factors)
    if known is not None and not known.has_scale({n: tuple(f.shape) for n, f in factors.items()}):
        alpha = alpha if alpha is not None and abs(alpha) <= LARGEST_ALPHA else None
    rank = None
    if stored is None and known is not None and known.peft_alpha:
        down_rank = int(factors[DOWN].shape[0]) if DOWN in factors else 1
        alpha = alphas.alpha_as_stored(target.part, target.path, down_rank, setting=known.peft_alpha)
        rank = alphas.rank(target.part, target.path)
    if known is not None and known.read:
        factors = load_factory(known.read)(factors, None if stored is not None else alpha, rank)
    return AdapterLayer(target.part, target.path, factors, alpha)


def _divide_layer(layer: AdapterLayer, target: AdapterTarget, ranks: Sequence[int], where: str) -> list[AdapterLayer]:
    if why := why_undivided(target, layer.shapes):
        raise DarkroomError(undivided_message(where, layer.path, why), advice=UNDIVIDED_ADVICE)
    return divide(layer, target, ranks)


def _output_axis(magnitudes: torch.Tensor, ndim: int) -> torch.Tensor:
    """Return PEFT's magnitudes, of shape (out,) or (1, out, 1, 1), as a DoRA scale of shape (out, 1, ...)."""
    return magnitudes.reshape(-1, *(1 for _ in range(ndim - 1)))


def _check_layer(layer: AdapterLayer, where: str) -> AdapterLayer:
    if damage := damage_of_alpha(layer.alpha or 0.0, layer.shapes):
        what = "a far too large value" if math.isfinite(layer.alpha or 0.0) else "NaN or infinite values"
        raise DarkroomError(
            f"{where} has {what} at {layer.part}.{layer.path}: {damage}.",
            advice="Choose another file, such as an earlier save of the same training, or download it again.",
        )
    return layer
