"""The protocols of a built adapter and of a kind of adapter, and the choice of target layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import nn

from modules.adapters.spec import AdapterSpec
from modules.families.lora_naming import LoraNaming
from modules.families.spec import Role
from modules.formats.adapter_forms import FileForm
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.safetensors_io import Writable
from modules.settings.layer_filter import LayerFilter, select_layers
from modules.system.factories import load_factory


class Adapter(Protocol):
    """The adapter of one part of a model: trainable, while the part itself is frozen.

    Its layers are in `module`, so they follow its `train()`, its `eval()` and its device.
    """

    @property
    def part(self) -> str:
        """The part's name."""
        ...

    @property
    def module(self) -> nn.Module:
        """The part."""
        ...

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by the part's name and their dotted name in it."""
        ...

    def fixed(self) -> Mapping[str, torch.Tensor]:
        """Return the tensors that are neither trained nor in a file of the model, by full name, for backups.

        A run has computed them once, such as the initial product of a PiSSA. They are read back in place.
        """
        ...

    def stored_layers(self, values: Mapping[str, torch.Tensor]) -> list[AdapterLayer]:
        """Return the adapter as files hold it, its weights out of `values`, which are named as `parameters` names them.

        The layers are for the `write` of the adapter's kind.
        """
        ...

    def changes_nothing(self) -> bool:
        """Return whether the model computes exactly the same as without the adapter, as before the first step.

        False if that is not known without a comparison.
        """
        ...

    def disabled(self) -> AbstractContextManager[None]:
        """Return a context in which the adapter is off and no gradient is recorded.

        Frozen layers of the file that the run started from stay on (`kept_layers`): the reference is the model that the
        run started from.
        """
        ...


@dataclass(frozen=True, slots=True)
class LowRankProduct:
    """A layer's change of the model, `scale * B A`, by the full names of its parameters: `down` is A, `up` is B."""

    down: str
    up: str
    scale: float


@runtime_checkable
class LowRankAdapter(Protocol):
    """An adapter that changes every layer by one product of two matrices, whose norm can be limited."""

    def products(self) -> list[LowRankProduct]:
        """Return the product of each layer."""
        ...


@runtime_checkable
class CastingAdapter(Protocol):
    """An adapter that can multiply in the dtype of its layers' inputs (`AdapterSpec.computes_in_input_dtype`)."""

    def compute_in_input_dtype(self, dtype: torch.dtype) -> None:
        """Multiply in the dtype of the input from now on, usually `dtype`, for a run without autocast."""
        ...


class AdapterKind(Protocol):
    """The operations of one kind of adapter."""

    def attach(
        self,
        part: str,
        module: nn.Module,
        targets: Sequence[str],
        settings: Any,
        *,
        seed: int,
        start: Sequence[AdapterLayer] = (),
        where: str = "",
    ) -> Adapter:
        """Freeze a part and put an adapter on its target layers, in place.

        `settings` are of the spec's class. The model's function is unchanged at first; weights are drawn from `seed`
        alone. The target layers in `start`, of a file named `where`, get the weights and the shapes (such as the rank)
        of the file. Their strength does not change; alpha by rank follows the settings. Raises DarkroomError if a layer
        does not fit the model.
        """
        ...

    def write(
        self, layers: Iterable[AdapterLayer], form: FileForm, naming: LoraNaming
    ) -> tuple[Mapping[str, Writable], dict[str, str]]:
        """Return the tensors of a file, and the metadata that the form adds. `form` is one of the spec's forms."""
        ...


def kind_of(spec: AdapterSpec) -> AdapterKind:
    """Import the kind of an adapter. Raises ValueError for one that is not supported yet."""
    return cast(AdapterKind, load_factory(spec.factory))


def target_layers(module: nn.Module, role: Role, *, layers: LayerFilter, reaches: Callable[[str], bool]) -> list[str]:
    """Return the dotted names of the layers that get an adapter, in the order of the module.

    These are the linear and convolution layers that the filter matches; a convolution within groups has no matrix. For
    a text encoder there is no filter, but only its numbered layers count: a projection after them has no name that
    every program reads in LoRA files. Layers that no gradient reaches (left out by clip skip) get no adapter. Raises
    DarkroomError if an entry of the filter matches no layer.
    """
    candidates = [n for n, m in module.named_modules() if _has_matrix(m) and reaches(n)]
    if role == "text_encoder":
        return [name for name in candidates if any(step.isdigit() for step in name.split("."))]
    return select_layers(layers, candidates, page="Training")


def _has_matrix(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1)
