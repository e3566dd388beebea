"""The weights of a part that its file has packed already, for layers that compute with them as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch

from modules.families.parts.single_file.denoiser_file import (
    StoredTensor,
    is_in_denoiser_files,
    packed_layers,
    tensors_of,
)
from modules.families.parts.single_file.encoder_file import require_encoder
from modules.families.parts.single_file.slots import Slot
from modules.families.spec import FamilySpec, PartSpec
from modules.formats.gguf_header import GgufTensor
from modules.formats.gguf_tensors import read_packed
from modules.formats.lazy_tensors import LazyTensor
from modules.formats.stored_tensors import ScaledTensor, read_stored
from modules.quantization.packing import FLOAT8_ROWS, ROWS, GgufBlocks, PackedData, PackedWeight
from modules.quantization.registry import ChosenFormat, Rounding

PackedWeights = Mapping[str, Callable[[], PackedWeight]]
"""Functions that read the packed weights of linear layers, by the name of the layer."""


def packed_weights(spec: FamilySpec, part: PartSpec, path: Path, module: Any, chosen: ChosenFormat) -> PackedWeights:
    """Return the weights that a part's file has packed in the format that is chosen for them; none without any.

    Those are the blocks of a GGUF file, or float8 weights with scales. Raises DarkroomError if the file does not
    fit `module`, the part.
    """
    if chosen.format.is_stored:
        config = dict(module.config) if is_in_denoiser_files(spec.name, part) else {}
        blocks = packed_layers(spec.name, part, path, config)
        rounding = chosen.format.rounds_inputs
        return {layer: _blocks(path, entry, rounding) for layer, entry in blocks.items() if chosen.takes(layer)}
    if not chosen.keeps_scaled_float8:
        return {}
    stored = read_stored(path)[0]
    rows: dict[str, Callable[[], PackedWeight]] = {}
    for name, tensor in part_tensors(spec, part, module, stored, file=path.name).items():
        weight = stored[tensor.name]
        layer = name.removesuffix(".weight")
        if is_scaled_matrix(weight, tensor.slot) and chosen.takes(layer):
            rows[layer] = _rows(weight, tensor.slot)
    return rows


def part_tensors(
    spec: FamilySpec, part: PartSpec, module: Any, stored: Mapping[str, LazyTensor], *, file: str
) -> dict[str, StoredTensor]:
    """Return where a file has each tensor of a denoiser or a text encoder, by the name in `module`, the part.

    Raises DarkroomError if the file does not contain such a part.
    """
    if is_in_denoiser_files(spec.name, part):
        return tensors_of(spec.name, part, stored, dict(module.config), where=file)
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    names = require_encoder(expected, {n: t.shape for n, t in stored.items()}, file=file, part=part)
    return {ours: StoredTensor(theirs, Slot(ours, ours)) for ours, theirs in names.items()}


def is_scaled_matrix(weight: LazyTensor, slot: Slot) -> TypeGuard[ScaledTensor]:
    """Return whether a stored tensor is a matrix of e4m3 with scales that has the rows of the slot's tensor."""
    if not isinstance(weight, ScaledTensor) or weight.stored.dtype != torch.float8_e4m3fn:
        return False
    return (
        len(weight.shape) == 2 and slot.key.endswith(".weight") and not (slot.conv or slot.transposed or slot.swapped)
    )


def _blocks(path: Path, entry: GgufTensor, rounding: Rounding) -> Callable[[], PackedWeight]:
    """Return a function that reads the blocks of a layer, and makes rows of 8 bits of them if inputs are rounded."""

    def read() -> PackedWeight:
        blocks, data = GgufBlocks(entry.type), read_packed(path, entry)
        stored = PackedData(data, data.new_empty(0).float())
        if not rounding:
            return PackedWeight(blocks, stored.packed, stored.scales)
        out, inner = entry.shape
        return PackedWeight(ROWS[rounding], *ROWS[rounding].pack(blocks.unpack(stored, (out, inner), torch.float32)))

    return read


def _rows(weight: ScaledTensor, slot: Slot) -> Callable[[], PackedWeight]:
    def read() -> PackedWeight:
        start, stop = slot.rows(weight.shape[0])
        rows = weight.stored.make()[start:stop].clone()
        return PackedWeight(FLOAT8_ROWS, rows, weight.row_scales()[start:stop].clone())

    return read
