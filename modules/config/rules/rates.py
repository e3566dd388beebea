"""Learning rates that an optimizer can use, by the kind of optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from modules.config.schema import Config
from modules.config.sections.optimizer import OPTIMIZER_LABELS
from modules.families.registry import FAMILIES
from modules.system.problem import Problem


@dataclass(frozen=True, slots=True)
class _Rates:
    """Outside of these no optimizer of the kind learns anything sensible; `usual` says which ones do."""

    lowest: float
    highest: float
    usual: str


@dataclass(frozen=True, slots=True)
class _Kind:
    """The optimizers whose names begin so, and their rates for an adapter and for the model itself."""

    prefixes: tuple[str, ...]
    adapter: _Rates
    full: _Rates
    why: str


_OF_ITS_OWN = _Rates(0.05, 20.0, "1, or between 0.5 and 2")
# The first that fits counts. Adam's own row is the last, for what is like Adam: most are.
_KINDS = (
    _Kind(
        ("prodigy", "dadapt", "d_adapt"),
        _OF_ITS_OWN,
        _OF_ITS_OWN,
        "finds its rate itself, and this number only scales it",
    ),
    _Kind(
        ("lion", "tiger", "signsgd"),
        _Rates(1e-8, 0.005, "between 0.00001 and 0.0003"),
        _Rates(1e-10, 1e-4, "between 0.0000001 and 0.000005"),
        "moves every weight by the whole rate at each step",
    ),
    _Kind(
        ("sgd", "schedule_free_sgd", "lars"),
        _Rates(1e-5, 100.0, "between 0.01 and 1"),
        _Rates(1e-6, 10.0, "between 0.0001 and 0.1"),
        "moves by the gradient as it is, which is small",
    ),
    _Kind(
        ("adagrad", "lamb", "muon", "adamuon"),
        _Rates(1e-7, 1.0, "between 0.0005 and 0.02"),
        _Rates(1e-9, 0.05, "between 0.00001 and 0.001"),
        "takes somewhat larger rates than AdamW",
    ),
    _Kind(
        ("",),
        _Rates(1e-7, 0.05, "between 0.00005 and 0.001"),
        _Rates(1e-9, 0.001, "between 0.000001 and 0.00002"),
        "moves every weight by about the rate at each step",
    ),
)


def plausible_learning_rate(config: Config) -> Iterator[Problem]:
    """A rate that the optimizer cannot use: far too high breaks the model, far too low learns nothing."""
    name = config.training.optimizer.name
    label = OPTIMIZER_LABELS[name]
    kind = next(k for k in _KINDS if name.startswith(k.prefixes))
    is_full = config.training.trains == "full"
    rates = kind.full if is_full else kind.adapter
    for path, rate in _rates_in_use(config).items():
        if rate > rates.highest:
            verdict = f"is far above what {label} can use"
        elif 0 < rate < rates.lowest:
            verdict = f"is so far below what {label} needs that next to nothing is learned"
        else:
            continue
        yield Problem(
            path,
            f"A learning rate of {rate:g} {verdict}: it {kind.why}.",
            "warning",
            f"With {label}, usual values for {'a fine-tune' if is_full else 'a LoRA'} are {rates.usual}.",
        )


def _rates_in_use(config: Config) -> dict[str, float]:
    """Return the rates that parts learn at, by the field they come from."""
    found: dict[str, float] = {}
    for part in FAMILIES[config.model.family].trainable_parts:
        own = config.part(part.name)
        if own.train and own.learning_rate is None:
            found["training.learning_rate"] = config.training.learning_rate
        elif own.train and own.learning_rate is not None:
            found[f"parts.{part.name}.learning_rate"] = own.learning_rate
    return found
