"""Learning rates against the usual range of the optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import rate_factor_of
from modules.config.schema import Config
from modules.config.words import trained_parts
from modules.optim.registry import optimizer_spec
from modules.system.problem import Problem


def plausible_learning_rate(config: Config) -> Iterator[Problem]:
    """Yield a warning for each rate outside the optimizer's range: the run would diverge, or hardly train."""
    spec = optimizer_spec(config.training.optimizer)
    if spec.chooses_rate is not None and spec.chooses_rate(config.training.optimizer):
        return
    label = spec.label
    is_full = config.training.trains in ("full", "vae")
    rates = spec.rates.full if is_full else spec.rates.adapter
    factor = rate_factor_of(config)
    for path, rate in rates_in_use(config).items():
        if rate > rates.highest:
            verdict = f"is far above what {label} can use"
        elif 0 < rate < rates.lowest:
            verdict = f"is so far below what {label} needs that hardly anything is learned"
        else:
            continue
        scaled = "" if factor == 1 else f", {rate / factor:g} times {factor:g} by the learning rate scaler,"
        yield Problem(
            path,
            f"A learning rate of {rate:g}{scaled} {verdict}: it {spec.rates.why}.",
            "warning",
            f"With {label}, usual values for {'a fine-tune' if is_full else 'a LoRA'} are {rates.usual}.",
        )


def rates_in_use(config: Config) -> dict[str, float]:
    """Return the learning rates of the trained parts, scaled, by the path of the setting they come from."""
    found: dict[str, float] = {}
    factor = rate_factor_of(config)
    for part in trained_parts(config):
        own = config.part(part.name)
        if own.learning_rate is None:
            found["training.learning_rate"] = config.training.learning_rate * factor
        else:
            found[f"parts.{part.name}.learning_rate"] = own.learning_rate * factor
    return found
