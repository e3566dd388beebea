"""Fit to my card: the fastest settings of a run whose memory fits, among those that do not change what it learns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.system import hardware
from modules.system.hardware import GpuMemory, free_memory, gpu_memory
from modules.system.problem import format_size
from trainer.launch import first_device
from trainer.preflight.moves import sacrifices
from trainer.preflight.run_budget import TIGHT, Budget, known_budget, on_a_gpu
from trainer.preflight.search import SLOW, Search, StepTimes, Worth, is_noteworthy, worth_alone, worth_in_turn

_UNITS = {"": 1e9, "gb": 1e9, "g": 1e9, "gib": 1 << 30, "mb": 1e6, "mib": 1 << 20}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


@dataclass(frozen=True, slots=True)
class Fit:
    """Settings that fit a card: the changed config, its changes, and the memory and time of a step before and after.

    Each change counts after the ones before it; one that makes room for speed saves less than nothing. Without `fits`
    nothing that keeps what the run learns does, and the changes are those that come nearest; `further` are changes that
    also change what it learns. `num_estimated` counts the settings whose memory was estimated.
    """

    config: Config
    changes: tuple[Worth, ...]
    card_bytes: int
    limit_bytes: int
    before_bytes: int
    after_bytes: int
    time_factor: float
    fits: bool
    further: tuple[Worth, ...] = ()
    num_estimated: int = 0


def fit(config: Config, sizes: Mapping[Size, int], *, card_bytes: int, is_this_card: bool = False) -> Fit | None:
    """Return the settings that fit a card with so many free bytes; None if the memory cannot be estimated.

    `is_this_card`: the run trains on a device of this machine; otherwise the runtime of a GPU is counted in any case.
    """
    budget = known_budget(config, sizes)
    if budget is None:
        return None
    return fit_budget(budget if is_this_card else on_a_gpu(budget), card_bytes=card_bytes)


def fit_budget(budget: Budget, *, card_bytes: int) -> Fit:
    """Return the settings that fit. Budgets of one model share the replays of its passes.

    Raises the errors of `estimate`.
    """
    limit = round(TIGHT * card_bytes)
    search, times = Search(budget, limit), StepTimes(budget)
    best, peak = search.fastest()
    fits = peak <= limit
    factor = best.time / times.of(budget.config)
    return Fit(
        best.config,
        tuple(worth_in_turn(budget, best.moves)),
        card_bytes,
        limit,
        budget.peak_bytes,
        peak,
        factor,
        fits,
        () if fits and factor < SLOW else _further(budget, best.config),
        search.num_estimated,
    )


def _further(budget: Budget, config: Config) -> tuple[Worth, ...]:
    """Return further changes that save memory, but also change the result."""
    changed = budget.with_config(config)
    assert changed is not None
    worths = worth_alone(changed, sacrifices(changed))
    return tuple(w for w in worths if is_noteworthy(w, changed.peak_bytes))


def describe_fit(fit: Fit) -> str:
    """Return the outcome in a few sentences."""
    card = f"{format_size(fit.card_bytes)} ({format_size(fit.limit_bytes)} with a reserve)"
    more = "; ".join(f"{w.move.words} saves about {format_size(w.saved_bytes)}" for w in fit.further)
    further = f" These would help as well, but change what the run learns: {more}." if more else ""
    if fit.fits and not fit.changes:
        return f"The run needs about {format_size(fit.after_bytes)} and fits {card} as it is, as fast as it can be."
    if fit.fits:
        now = f"about {format_size(fit.after_bytes)} in place of {format_size(fit.before_bytes)}"
        return f"With these changes the run needs {now}, which fits {card}. A step takes {time_words(fit)}.{further}"
    nearest = f"With the changes that come nearest the run needs about {format_size(fit.after_bytes)}."
    if not fit.changes:
        nearest = f"The run needs about {format_size(fit.after_bytes)}, and none of the choices lowers that."
    last = further or " Use smaller images, or train less of the model."
    return f"No settings that keep what the run learns fit {card}. {nearest}{last}"


def time_words(fit: Fit) -> str:
    """Return how long a step takes after the changes, in words."""
    factor = fit.time_factor
    if 0.97 <= factor <= 1.03:
        return "about as long as before"
    return f"about {factor:.0%} of the time" if factor < 1 else f"about {factor:.2g} times as long"


def bytes_words(saved: int) -> str:
    """Return the bytes that a change saves, or adds, as text."""
    if abs(saved) < 10_000_000:
        return "the same"
    return f"-{format_size(saved)}" if saved > 0 else f"+{format_size(-saved)}"


def factor_words(factor: float) -> str:
    """Return the factor on a step's time as text."""
    return "the same" if 0.995 < factor < 1.005 else f"x {factor:.2f}"


def size_of(text: str) -> int | None:
    """Return the bytes of a size such as "8GB" or "8"; None for anything else."""
    match = _SIZE.fullmatch(text.strip().lower())
    size = float(match[1]) * _UNITS[match[2]] if match is not None and match[2] in _UNITS else 0.0
    return round(size) or None


def free_here(config: Config, *, memory_of: Callable[[str], GpuMemory | None] = gpu_memory) -> int | None:
    """Return the free bytes of the device that a config trains on: its GPU, or the computer's memory on a CPU.

    None for a GPU whose memory no tool reports. `memory_of(device)` returns the GPU's memory.
    """
    gpu = memory_of(first_device(config))
    if gpu is not None:
        return gpu.free_bytes
    is_shared = hardware.here().kind_of(config.general.train_device) in ("cpu", "mps")
    return free_memory() if is_shared else None
