"""What an adapter offers once it is built, what its kind can do with models and files, and which layers get one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import nn

from modules.adapters.spec import AdapterSpec, FileForm
from modules.families.spec import LoraNaming, Role
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
        """Return the tensors that it does not train and that no file of the model has, by full name, to write and read
        them in place: what a run has computed once, such as the product that a PiSSA began with.
        """
        ...

    def stored_layers(self, values: Mapping[str, torch.Tensor]) -> list[AdapterLayer]:
        """Return the adapter as files hold it, its weights out of `values`, which are named as `parameters` names them.

        They are layers of its own kind, for its kind's `write`.
        """
        ...

    def changes_nothing(self) -> bool:
        """Return whether the model computes exactly what it would without the adapter, as before its first step.

        False where that is not known without a comparison.
        """
        ...

    def disabled(self) -> AbstractContextManager[None]:
        """Return a context in which the model is without the adapter and no gradient is recorded.

        Frozen layers of the file that the run started from stay on (`kept_layers`): they are part of what it started
        from, and the reference is the model without what was trained.
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


class AdapterKind(Protocol):
    """What can be done with one kind of adapter."""

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
        """Put an adapter on the target layers of a part, which gets frozen, in place.

        `settings` are of the spec's class. At first the model is what it was; weights are drawn from `seed` alone.
        The target layers in `start`, of a file named `where`, have the weights and the shapes (such as the rank) that
        they have there. Their strength stays what it was; alpha by rank is that of the settings. Raises DarkroomError
        if a layer does not fit the model.
        """
        ...

    def attach_stored(self, part: str, module: nn.Module, layers: Sequence[AdapterLayer], *, where: str) -> Adapter:
        """Put an adapter with the weights of a file named `where` on the layers that the file has."""
        ...

    def write(
        self, layers: Iterable[AdapterLayer], form: FileForm, naming: LoraNaming
    ) -> tuple[Mapping[str, Writable], dict[str, str]]:
        """Return the tensors of a file, and what the form adds to its metadata. `form` is one of the spec's."""
        ...


def kind_of(spec: AdapterSpec) -> AdapterKind:
    """Import what builds, reads and writes an adapter. Raises ValueError for one that is not supported yet."""
    return cast(AdapterKind, load_factory(spec.factory))


def target_layers(module: nn.Module, role: Role, *, layers: LayerFilter, reaches: Callable[[str], bool]) -> list[str]:
    """Return the dotted names of the layers that get an adapter, in the module's own order.

    Linear and convolution layers that the filter takes; a text encoder has no filter, but its
    numbered layers alone count: a projection behind them has no name in LoRA files that every program reads. What no
    gradient can reach (layers left out by clip skip) is never taken. Raises DarkroomError where an entry of the
    filter takes no layer.
    """
    candidates = [n for n, m in module.named_modules() if isinstance(m, nn.Linear | nn.Conv2d) and reaches(n)]
    if role == "text_encoder":
        return [name for name in candidates if "layers" in name.split(".")]
    return select_layers(layers, candidates, page="LoRA / Adapter")
