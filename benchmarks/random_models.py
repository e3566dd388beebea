"""Models of published shapes with random weights: speed and memory do not depend on their values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from modules.families.parts import folder_model
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.models import shipped_configs
from modules.families.parts.single_file.write import CheckpointTraits
from modules.families.registry import FAMILIES, published_model
from modules.families.spec import FamilySpec, PartSpec
from modules.formats.lazy_tensors import LazyTensor
from modules.formats.safetensors_io import header_of, names_in_order
from modules.system.atomic import atomic_file
from modules.system.devices import CPU, Device, move
from modules.system.factories import load_factory

_SPREAD = 0.02  # of random weights: small enough that nothing overflows in 16 bits
_DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight to write. One that `may_be_zero` is a matrix of a transformer block that is not the first of its kind:
    such a block adds nothing to what it is given.
    """

    shape: tuple[int, ...]
    may_be_zero: bool

    @property
    def num_bytes(self) -> int:
        """Its size in a file."""
        return math.prod(self.shape) * _DTYPE.itemsize


@dataclass(frozen=True)
class Shapes:
    """The shapes of a published model. The configs of its parts have `changes`, by part; those of a `variant` may be of
    other classes.
    """

    model: str
    variant: str = ""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def spec(self) -> FamilySpec:
        """The facts of its family."""
        return FAMILIES[published_model(self.model).family].of_variant(self.variant)

    @cached_property
    def configs(self) -> dict[str, dict[str, Any]]:
        """The configs of its parts and of its scheduler."""
        known = {name: {**config, **self.changes.get(name, {})} for name, config in shipped_configs(self.model).items()}
        return known | {p.name: dict(p.model.own_config(known[p.name])) for p in self.spec.parts if p.name in known}

    @cached_property
    def weights(self) -> dict[str, dict[str, Weight]]:
        """All weights, by part and name."""
        configs = self.configs
        return {part.name: _weights_of(part, configs[part.name]) for part in self.spec.parts if part.name in configs}

    def num_bytes(self, *, has_holes: bool) -> int:
        """Return the bytes of the model on the disk."""
        all_weights = (weight for part in self.weights.values() for weight in part.values())
        return sum(weight.num_bytes for weight in all_weights if not (has_holes and weight.may_be_zero))


def _weights_of(part: PartSpec, config: Mapping[str, Any]) -> dict[str, Weight]:
    module, blocks = empty_part(load_factory(part.model_class), config), part.model.transformer_blocks
    kinds = tuple(map(load_factory, blocks))
    places = (name for name, inner in module.named_modules() if isinstance(inner, kinds))
    later = tuple(f"{place}." for place in places if not place.endswith(".0"))
    return {
        name: Weight(tuple(tensor.shape), tensor.ndim > 1 and name.startswith(later))
        for name, tensor in module.state_dict().items()
    }


class Hole(LazyTensor):
    """A tensor of zeros that takes no room in a file."""


def write_random_model(
    folder: Path,
    shapes: Shapes,
    *,
    device: Device = CPU,
    tokenizers_from: Path | None = None,
    has_holes: bool = False,
) -> Path:
    """Write a model as a diffusers folder of random bfloat16 weights, one tensor at a time.

    They are drawn on a device. `tokenizers_from` is a model with the tokenizers of families that have no CLIP. With
    `has_holes` those that may be zero are holes in the files: most disks keep no room for them.
    """

    def made(name: str, weight: Weight) -> LazyTensor:
        if has_holes and weight.may_be_zero:
            return Hole(weight.shape, _DTYPE, partial(torch.zeros, weight.shape, dtype=_DTYPE))
        return LazyTensor(weight.shape, _DTYPE, partial(_random_weight, name, weight.shape, device))

    states = {part: {name: made(name, w) for name, w in weights.items()} for part, weights in shapes.weights.items()}
    prediction = "epsilon" if shapes.spec.process.flow is None else "flow"
    traits = CheckpointTraits(shapes.model, prediction, variant=shapes.variant)
    writer: AbstractContextManager[object] = nullcontext()
    if has_holes:
        writer = mock.patch.object(folder_model, "write_safetensors", _write_with_holes)
    with writer:
        folder_model.write_folder(folder, states, shapes.configs, traits, dtype=_DTYPE, tokenizers_from=tokenizers_from)
    return folder


def _write_with_holes(
    path: Path, tensors: Mapping[str, LazyTensor], metadata: Mapping[str, str], *, dtype: torch.dtype, **_: Any
) -> None:
    """Write tensors as `write_safetensors` does, with holes in place of those that are `Hole`s."""
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        file.write(header_of(tensors, metadata, dtype))
        for name in names_in_order(tensors, dtype):
            tensor = tensors[name]
            if isinstance(tensor, Hole):
                file.seek(tensor.num_bytes, 1)
            else:
                file.write(tensor.make().reshape(-1).view(torch.uint8).numpy().data)
        file.truncate()


def _random_weight(name: str, shape: tuple[int, ...], device: Device) -> torch.Tensor:
    if len(shape) < 2:  # a norm's weights are about one, biases about zero
        return torch.full(shape, float(name.endswith("weight")), dtype=_DTYPE)
    return move(torch.randn(shape, dtype=_DTYPE, device=device.torch) * _SPREAD, CPU)
