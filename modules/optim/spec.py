"""The record of an optimizer; `registry.py` lists one per optimizer."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from modules.optim.terms.arguments import by_name
from modules.optim.terms.removed import RemovedSetting
from modules.settings.field import Section, records_of
from modules.system.factories import Package
from modules.system.problem import Problem

Shape = tuple[int, ...]
EffectiveRate = Callable[[Mapping[str, Any]], Any]
"""From a parameter group to its effective learning rate: a float, a tensor of shape (), or None if not known yet."""


class OptimizerSettings(Section):
    """The settings of an optimizer. Each optimizer has its own fields; files identify it by `name`."""

    name: str


Settings = TypeVar("Settings", bound=OptimizerSettings)


@dataclass(frozen=True, slots=True)
class LearningRates:
    """The range of learning rates with which an optimizer trains at all; `usual` names the typical ones, as text."""

    lowest: float
    highest: float
    usual: str


@dataclass(frozen=True, slots=True)
class UsualRates:
    """The usual learning rates for an adapter and for a fine-tune, and the reason, which follows "it" in a sentence."""

    adapter: LearningRates
    full: LearningRates
    why: str


def averages(number: int) -> Callable[[Any, Shape], float]:
    """Return the `state_bytes` function of an optimizer that keeps this many float32 averages of a weight.

    With AMSGrad, where its settings have it, there is another one: the maximum of the squares.
    """

    def state_bytes(settings: Any, shape: Shape) -> float:
        has_maximum = getattr(settings, "amsgrad", False) or getattr(settings, "ams_bound", False)
        return 4.0 * (number + bool(has_maximum)) * math.prod(shape)

    return state_bytes


_BY_NAME, _AS_ADAMW = by_name(), averages(2)
DARKROOM = "Darkroom"


def always(settings: OptimizerSettings) -> bool:
    """Return True: for a fact that does not depend on the settings."""
    return True


def _never(settings: OptimizerSettings) -> bool:
    return False


def distance_times_rate(group: Mapping[str, Any]) -> Any:
    """Return the `effective_rate` of Prodigy and D-Adaptation: the estimated distance times the learning rate.

    The schedule has scaled the learning rate already (Mishchenko and Defazio 2023, algorithm 1).
    """
    return group["d"] * group["lr"]


def scheduled_rate(group: Mapping[str, Any]) -> Any:
    """Return the `effective_rate` of the schedule-free optimizers, with their own warm-up; None before a step."""
    return group["scheduled_lr"] or None


ADAM_RATES = UsualRates(
    adapter=LearningRates(1e-7, 0.05, "between 0.00005 and 0.001"),
    full=LearningRates(1e-9, 0.001, "between 0.000001 and 0.00002"),
    why="changes every weight by about the learning rate at each step",
)
SIGN_RATES = UsualRates(
    adapter=LearningRates(1e-8, 0.005, "between 0.00001 and 0.0003"),
    full=LearningRates(1e-10, 1e-4, "between 0.0000001 and 0.000005"),
    why="changes every weight by the full learning rate at each step",
)
PLAIN_RATES = UsualRates(
    adapter=LearningRates(1e-5, 100.0, "between 0.01 and 1"),
    full=LearningRates(1e-6, 10.0, "between 0.0001 and 0.1"),
    why="changes weights in proportion to the raw gradient, which is small",
)
LARGER_RATES = UsualRates(
    adapter=LearningRates(1e-7, 1.0, "between 0.0005 and 0.02"),
    full=LearningRates(1e-9, 0.05, "between 0.00001 and 0.001"),
    why="needs somewhat larger learning rates than AdamW",
)
_OF_ITS_OWN = LearningRates(0.05, 20.0, "1, or between 0.5 and 2")
FINDS_ITS_RATE = UsualRates(
    adapter=_OF_ITS_OWN, full=_OF_ITS_OWN, why="finds its learning rate itself and only scales it by this number"
)


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec(Generic[Settings]):
    """The facts about an optimizer that the program needs before torch is imported.

    `factory` names its constructor, as "module:name", called with parameter groups and with `arguments(settings)`: by
    default each setting as the argument of its name. `state_bytes(settings, shape)` is the size of its state for a
    weight of this shape, in bytes, on a float32 master weight where the weight has 16 bits; the default is AdamW's
    state, the largest of the usual ones. `problems(settings)` yields the problems of its fields, with the fields'
    names.

    `library` is who implements it if the factory is in this program: a library besides `packages`, or `DARKROOM`.

    `options_of` names a function, as "module:name", called with the settings, that returns the `OptionsOf` of
    `param_groups.py`: it divides the weights of a part into groups with their own options or rate.

    `is_elementwise`: it updates each element of a weight by itself, and keeps state of the weight's shape or a single
    number. A process may then update a part of the rows of a weight.

    `steps_at_once`: its step needs all weights together; any other optimizer steps a slice at a time. `group_state`
    names the state it keeps in its parameter groups rather than per weight. `has_one_rate`: all parts must have the
    same learning rate. `has_evaluation_mode(settings)`: the weights it trains are not the ones to validate, sample or
    save with (schedule-free). `leaves_zeros(settings)`: weights that are all zero stay zero, such as the weights of a
    new adapter. `skips_on_device(settings)`: its step reads the flag "found_inf" on the device, as torch's fused steps
    do, and changes nothing where it is set. `waits_per_weight(settings)`: its step makes the host wait for the device
    at each weight, to read a norm or because its library waits (bitsandbytes). `reads_memory_in_order(settings)`: its
    step reads the memory of weights and gradients from the first byte to the last, whatever their layout, and gets them
    contiguous. `more_packages(settings)`: packages that only some settings need. `saves_memory`: advice on memory
    recommends it.

    `effective_rate(group)` returns the rate with which a parameter group is updated, where the optimizer finds it
    itself: from the group's entries, such as `group["d"] * group["lr"]`, without reading tensors. It is read after
    each step and reported (`param_groups.py`). `chooses_rate(settings)`: it ignores the learning rate and its
    schedule, where it can choose its own.

    `removed`: settings of OneTrainer's that do not exist here; files may still contain them.
    """

    settings: type[Settings]
    label: str
    factory: str
    library: str = ""
    options_of: str = ""
    arguments: Callable[[Settings], Mapping[str, Any]] = _BY_NAME
    state_bytes: Callable[[Settings, Shape], float] = _AS_ADAMW
    rates: UsualRates = ADAM_RATES
    packages: tuple[Package, ...] = ()
    more_packages: Callable[[Settings], tuple[Package, ...]] = lambda settings: ()
    problems: Callable[[Settings], Iterator[Problem]] = lambda settings: iter(())
    is_elementwise: bool = False
    steps_at_once: bool = False
    group_state: tuple[str, ...] = ()
    has_one_rate: bool = False
    has_evaluation_mode: Callable[[Settings], bool] = _never
    leaves_zeros: Callable[[Settings], bool] = _never
    skips_on_device: Callable[[Settings], bool] = _never
    waits_per_weight: Callable[[Settings], bool] = _never
    reads_memory_in_order: Callable[[Settings], bool] = _never
    effective_rate: EffectiveRate | None = None
    chooses_rate: Callable[[Settings], bool] | None = None
    saves_memory: bool = False
    removed: Mapping[str, RemovedSetting] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in files."""
        return str(self.settings.model_fields["name"].default)

    @property
    def help(self) -> str:
        """A one-sentence description."""
        return (self.settings.__doc__ or "").strip().splitlines()[0]

    def packages_of(self, settings: Settings) -> tuple[Package, ...]:
        """Return the packages that the optimizer needs with these settings."""
        return self.packages + self.more_packages(settings)

    @property
    def finds_its_rate(self) -> bool:
        """Whether it estimates its learning rate itself."""
        return self.rates is FINDS_ITS_RATE

    @property
    def can_fuse(self) -> bool:
        """Whether it supports the fused backward pass: it does where its settings have the field."""
        fused = next((r for r in records_of(self.settings) if r.name == "fused_back_pass"), None)
        return fused is not None and not fused.setting.not_yet


def is_fused(settings: OptimizerSettings) -> bool:
    """Return whether the settings enable the fused backward pass."""
    return bool(getattr(settings, "fused_back_pass", False))
