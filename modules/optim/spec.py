"""What the program needs to know of an optimizer: one record each, found through `registry.py`. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from modules.settings.field import Section, records_of
from modules.system.problem import Problem

Shape = tuple[int, ...]


class OptimizerSettings(Section):
    """The settings of an optimizer. Each has fields of its own; the name tells them apart in files."""

    name: str


Settings = TypeVar("Settings", bound=OptimizerSettings)


@dataclass(frozen=True, slots=True)
class LearningRates:
    """Outside of these the optimizer learns nothing sensible; `usual` says which ones do."""

    lowest: float
    highest: float
    usual: str


@dataclass(frozen=True, slots=True)
class UsualRates:
    """The learning rates of an adapter and of the model itself, and why they are what they are."""

    adapter: LearningRates
    full: LearningRates
    why: str


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package that an optimizer comes from; `extra` names the optional dependencies it is among, if any."""

    name: str
    extra: str = ""

    @property
    def advice(self) -> str:
        """What to do where it is missing."""
        wanted = f'what the extra "{self.extra}" names (pip install ".[{self.extra}]")' if self.extra else self.name
        return f"Install {wanted}, or choose another optimizer."


def per_weight(num_bytes: float) -> Callable[[OptimizerSettings, Shape], float]:
    """Return the state of an optimizer that keeps so many bytes for every number of a weight."""
    return lambda settings, shape: num_bytes * math.prod(shape)


_AS_ADAMW = per_weight(8.0)


def _nothing_wrong(settings: OptimizerSettings) -> Iterator[Problem]:
    return iter(())


def _no_arguments(settings: OptimizerSettings) -> Mapping[str, Any]:
    return {}


ADAM_RATES = UsualRates(
    adapter=LearningRates(1e-7, 0.05, "between 0.00005 and 0.001"),
    full=LearningRates(1e-9, 0.001, "between 0.000001 and 0.00002"),
    why="moves every weight by about the rate at each step",
)
SIGN_RATES = UsualRates(
    adapter=LearningRates(1e-8, 0.005, "between 0.00001 and 0.0003"),
    full=LearningRates(1e-10, 1e-4, "between 0.0000001 and 0.000005"),
    why="moves every weight by the whole rate at each step",
)
PLAIN_RATES = UsualRates(
    adapter=LearningRates(1e-5, 100.0, "between 0.01 and 1"),
    full=LearningRates(1e-6, 10.0, "between 0.0001 and 0.1"),
    why="moves by the gradient as it is, which is small",
)
LARGER_RATES = UsualRates(
    adapter=LearningRates(1e-7, 1.0, "between 0.0005 and 0.02"),
    full=LearningRates(1e-9, 0.05, "between 0.00001 and 0.001"),
    why="takes somewhat larger rates than AdamW",
)
_OF_ITS_OWN = LearningRates(0.05, 20.0, "1, or between 0.5 and 2")
FINDS_ITS_RATE = UsualRates(
    adapter=_OF_ITS_OWN, full=_OF_ITS_OWN, why="finds its rate itself, and this number only scales it"
)


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec(Generic[Settings]):
    """An optimizer before torch is imported.

    `factory` names what builds it, as "module:name", called with parameter groups and with `arguments(settings)`; an
    optimizer without a factory is not supported yet. `state_bytes(settings, shape)` is what it keeps for a weight of
    a shape, in bytes, on a float32 master weight where the weight has 16 bits; unless said otherwise, what AdamW
    keeps, which is the most of the usual. `problems(settings)` yields what is wrong among its own fields, by their
    names.

    `steps_at_once`: its step looks at all weights together, and has to be handed all of them; any other is handed a
    few at a time. `group_state` names what it keeps in its parameter groups rather than for a weight. `has_one_rate`:
    all that is trained needs the same learning rate. `has_evaluation_mode`: it learns at other weights than those
    that are to be used (schedule-free). `needs_gpu`: its step runs on a GPU only. `saves_memory`: advice on memory
    names it.
    """

    settings: type[Settings]
    label: str
    factory: str = ""
    arguments: Callable[[Settings], Mapping[str, Any]] = _no_arguments
    state_bytes: Callable[[Settings, Shape], float] = _AS_ADAMW
    rates: UsualRates = ADAM_RATES
    packages: tuple[Package, ...] = ()
    problems: Callable[[Settings], Iterator[Problem]] = _nothing_wrong
    steps_at_once: bool = False
    group_state: tuple[str, ...] = ()
    has_one_rate: bool = False
    has_evaluation_mode: bool = False
    needs_gpu: bool = False
    saves_memory: bool = False

    @property
    def name(self) -> str:
        """Its name in files."""
        return str(self.settings.model_fields["name"].default)

    @property
    def help(self) -> str:
        """What it is, in a sentence."""
        return (self.settings.__doc__ or "").strip().splitlines()[0]

    @property
    def is_supported(self) -> bool:
        """Whether it can be built; what cannot is refused by name before a run."""
        return bool(self.factory)

    @property
    def can_fuse(self) -> bool:
        """Whether its step may be made inside the backward pass: its settings say so."""
        fused = next((r for r in records_of(self.settings) if r.name == "fused_back_pass"), None)
        return fused is not None and not fused.setting.not_yet


def is_fused(settings: OptimizerSettings) -> bool:
    """Return whether weights are to move inside the backward pass."""
    return bool(getattr(settings, "fused_back_pass", False))
