"""The record of an optimizer; `registry.py` lists one per optimizer."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from modules.optim.rates import ADAM, FINDS_ITSELF, EffectiveRate, UsualRates
from modules.settings.field import Section, records_of
from modules.system.factories import Package
from modules.system.problem import Problem

if TYPE_CHECKING:  # of imports from OneTrainer
    from modules.optim.terms.removed import RemovedSetting

Shape = tuple[int, ...]


class OptimizerSettings(Section):
    """The settings of an optimizer. Each optimizer has its own fields; files identify it by `name`."""

    name: str


Settings = TypeVar("Settings", bound=OptimizerSettings)


def averages(number: int | Callable[[Any], int]) -> Callable[[Any, Shape], float]:
    """Return the `state_bytes` function of an optimizer that keeps this many float32 averages of a weight.

    The number may depend on the settings. With AMSGrad, where its settings have it, there is another one: the maximum
    of the squares.
    """

    def state_bytes(settings: Any, shape: Shape) -> float:
        has_maximum = getattr(settings, "amsgrad", False) or getattr(settings, "ams_bound", False)
        num_averages = number(settings) if callable(number) else number
        return 4.0 * (num_averages + bool(has_maximum)) * math.prod(shape)

    return state_bytes


_INSTALLED = ("modules", "torch")
_NOT_ARGUMENTS = ("name", "fused_back_pass")
_BETAS = ("beta1", "beta2", "beta3")
_GROUPING = "muon_"
"""The prefix of settings that divide the weights into groups (`modules/optim/classes/muon.py`)."""
_NAMES = {"decoupled_decay": "weight_decouple", "quant_block_size": "block_size"}
_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "growth_rate": lambda limit: math.inf if limit is None else limit,
    "optim_bits": int,
    "orthogonal_gradient": lambda is_on: "flattened" if is_on else "disabled",  # adv-optm's modes
}


def by_name(
    names: Mapping[str, str] | None = None, *, more: Callable[[Any], Mapping[str, Any]] | None = None
) -> Callable[[Any], dict[str, Any]]:
    """Return the `arguments` function of an optimizer whose constructor has an argument for each setting.

    `names` are arguments that have other names than their settings. Two or three betas are one argument, and so are two
    epsilons; a beta that may be empty is an argument of its own. `more(settings)` adds arguments or replaces them.
    """
    renamed = _NAMES | dict(names or {})

    def arguments_of(settings: Any) -> dict[str, Any]:
        fields = [f for f in type(settings).model_fields if f not in _NOT_ARGUMENTS]
        values = {f: getattr(settings, f) for f in fields if not f.startswith(_GROUPING)}
        arguments: dict[str, Any] = {}
        betas = [f for f in values if f in _BETAS and type(settings).model_fields[f].default is not None]
        if len(betas) > 1:
            arguments["betas"] = tuple(values.pop(beta) for beta in betas)
        if "eps2" in values:
            arguments["eps"] = values.pop("eps"), values.pop("eps2")
        arguments |= {renamed.get(f, f): _VALUES[f](value) if f in _VALUES else value for f, value in values.items()}
        return arguments | dict(more(settings) if more else {})

    return arguments_of


_BY_NAME, _AS_ADAMW = by_name(), averages(2)
DARKROOM = "Darkroom"


def always(settings: OptimizerSettings) -> bool:
    """Return True: for a fact that does not depend on the settings."""
    return True


def _never(settings: OptimizerSettings) -> bool:
    return False


@dataclass(frozen=True, eq=False)
class OptimizerSpec(Generic[Settings]):
    """The facts about an optimizer that the program needs before torch is imported.

    `factory` names its constructor, as "module:name", called with parameter groups and with `arguments(settings)`: by
    default each setting as the argument of its name. `state_bytes(settings, shape)` is the size of its state for a
    weight of this shape, in bytes, on a float32 master weight where the weight has 16 bits; the default is AdamW's
    state, the largest of the usual ones. `problems(settings)` yields the problems of its fields, with the fields'
    names.

    `packages` are packages that it needs besides the one with the factory. `library` is who implements it if the
    factory is in this program: a library besides `packages`, or `DARKROOM`.

    `options_of` names a function, as "module:name", called with the settings, that returns the `OptionsOf` of
    `param_groups.py`: it divides the weights of a part into groups with their own options or rate.

    `is_elementwise`: it updates each element of a weight by itself, and keeps state of the weight's shape or a single
    number. A process may then update a part of the rows of a weight.

    `group_state` names the state it keeps in its parameter groups rather than per weight. `has_one_rate`: all parts
    must have the same learning rate. `has_evaluation_mode(settings)`: the weights it trains are not the ones to
    validate, sample or save with (schedule-free). `leaves_zeros(settings)`: weights that are all zero stay zero, such
    as the weights of a new adapter. `skips_on_device(settings)`: its step reads the flag "found_inf" on the device, as
    torch's fused steps do, and changes nothing where it is set. `waits_per_weight(settings)`: its step makes the host
    wait for the device at each weight, to read a norm or because its library waits (bitsandbytes).
    `reads_memory_in_order(settings)`: its step reads the memory of weights and gradients from the first byte to the
    last, whatever their layout, and gets them contiguous. `more_packages(settings)`: packages that only some settings
    need. `saves_memory`: advice on memory recommends it.

    `effective_rate(group)` returns the rate with which a parameter group is updated, where the optimizer finds it
    itself: from the group's entries, such as `group["d"] * group["lr"]`, without reading tensors. It is read after
    each step and reported (`param_groups.py`). `chooses_rate(settings)`: it ignores the learning rate and its
    schedule, where it can choose its own.

    `lacks` are the settings of OneTrainer's that do not exist here (`REMOVED`); files may still contain them.
    """

    settings: type[Settings]
    label: str
    factory: str
    _: KW_ONLY
    library: str = ""
    options_of: str = ""
    arguments: Callable[[Settings], Mapping[str, Any]] = _BY_NAME
    state_bytes: Callable[[Settings, Shape], float] = _AS_ADAMW
    rates: UsualRates = ADAM
    packages: tuple[Package, ...] = ()
    more_packages: Callable[[Settings], tuple[Package, ...]] = lambda settings: ()
    problems: Callable[[Settings], Iterator[Problem]] = lambda settings: iter(())
    is_elementwise: bool = False
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
    lacks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in files."""
        return str(self.settings.model_fields["name"].default)

    @property
    def help(self) -> str:
        """A one-sentence description."""
        return (self.settings.__doc__ or "").strip().splitlines()[0]

    @property
    def removed(self) -> Mapping[str, "RemovedSetting"]:
        """The settings of OneTrainer's that do not exist here."""
        from modules.optim.terms.removed import REMOVED

        return {name: REMOVED[name] for name in self.lacks}

    def packages_of(self, settings: Settings) -> tuple[Package, ...]:
        """Return the packages that the optimizer needs with these settings, with the one that contains it."""
        root = self.factory.partition(":")[0].partition(".")[0]
        outside = () if root in _INSTALLED else (Package(root),)
        return tuple(dict.fromkeys(outside + self.packages + self.more_packages(settings)))

    @property
    def steps_at_once(self) -> bool:
        """Whether its step needs all weights together, for the state of its groups; others step a slice at a time."""
        return bool(self.group_state)

    @property
    def finds_its_rate(self) -> bool:
        """Whether it estimates its learning rate itself."""
        return self.rates is FINDS_ITSELF

    @property
    def can_fuse(self) -> bool:
        """Whether it supports the fused backward pass: it does where its settings have the field."""
        fused = next((r for r in records_of(self.settings) if r.name == "fused_back_pass"), None)
        return fused is not None and not fused.setting.not_yet


def is_fused(settings: OptimizerSettings) -> bool:
    """Return whether the settings enable the fused backward pass."""
    return bool(getattr(settings, "fused_back_pass", False))
