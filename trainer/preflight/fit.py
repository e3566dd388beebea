"""Fit to my card: the fastest settings of a run whose memory fits, among choices that keep what it learns.

The choices are the dtype of frozen weights, what gradient checkpointing computes again, offloading, the fused backward
pass, where EMA is kept, and the micro-batch with the accumulation steps that keep the effective batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.estimate.run import in_gb
from modules.settings.edit import get_path
from modules.system import hardware
from modules.system.hardware import free_memory, gpu_memory
from trainer.preflight.fit_choices import Candidate, Option, candidates, kept_rank, on_a_gpu, relative_time
from trainer.preflight.moves import Move
from trainer.preflight.passes import MALFORMED_CONFIG
from trainer.preflight.run_budget import TIGHT, Budget, budget_of
from trainer.preflight.savings import Worth, worthwhile_savings

_UNITS = {"": 1e9, "gb": 1e9, "g": 1e9, "gib": 1 << 30, "mb": 1e6, "mib": 1 << 20}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_SLOW = 2.0  # times as long: then changes of what is learned are listed, too


@dataclass(frozen=True, slots=True)
class FitChange:
    """A proposed change: its move, the values before and after, the bytes it saves, and its factor on a step's time.

    Both figures count this change after the ones before it; a change that makes room for speed saves less than nothing.
    """

    move: Move
    before: tuple[Any, ...]
    saved_bytes: int
    time_factor: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Settings that fit a card: the changed config, its changes, and the memory and time of a step before and after.

    Without `fits` nothing that keeps what the run learns does, and the changes are those that come nearest; `further`
    are changes that also change what it learns. `num_estimated` counts the settings whose memory was estimated.
    """

    config: Config
    changes: tuple[FitChange, ...]
    card_bytes: int
    limit_bytes: int
    before_bytes: int
    after_bytes: int
    time_factor: float
    fits: bool
    further: tuple[Worth, ...] = ()
    num_estimated: int = 0


def fit(config: Config, sizes: Mapping[Size, int], *, card_bytes: int, is_this_card: bool = False) -> Fit | None:
    """Return what fits a card with so many free bytes; None where the memory cannot be estimated.

    `is_this_card`: the run trains on a device of this machine; otherwise the runtime of a GPU is counted in any case.
    """
    try:
        budget = budget_of(config, sizes)
        if budget is None:
            return None
        return fit_budget(budget if is_this_card else on_a_gpu(budget), card_bytes=card_bytes)
    except MALFORMED_CONFIG:  # the check of the model reports it
        return None


def fit_budget(budget: Budget, *, card_bytes: int) -> Fit:
    """Return what fits. Raises the errors of `estimate`. Budgets of one model share their walks through it."""
    limit = round(TIGHT * card_bytes)
    search = _Search(budget, limit)
    best, peak = search.fastest()
    fits = peak <= limit
    factor = best.time / relative_time(budget)
    return Fit(
        best.config,
        tuple(_changes(budget, best.moves)),
        card_bytes,
        limit,
        budget.peak_bytes,
        peak,
        factor,
        fits,
        () if fits and factor < _SLOW else _further(budget, best.config, limit),
        search.num_estimated,
    )


class _Search:
    """Finds the fastest candidate that fits, with as few estimates as possible.

    All candidates of a group differ in what is kept of activations and layers; if the one that keeps least does not
    fit, none of them does.
    """

    def __init__(self, budget: Budget, limit: int) -> None:
        self._budget, self._limit = budget, limit
        self._present = {(p.path, p.severity) for p in problems_of(budget.config)}
        self.num_estimated = 0

    def fastest(self) -> tuple[Candidate, int]:
        """Return the fastest candidate that fits with its peak, or the one with the lowest peak."""
        ranked = candidates(self._budget)
        leanest: dict[tuple[Option, ...], tuple[Candidate, int]] = {}
        for candidate in ranked:
            lean = leanest.get(candidate.group)
            if lean is None:
                lean = leanest[candidate.group] = self._leanest(candidate, ranked)
            if lean[1] > self._limit:
                continue
            peak = lean[1] if candidate is lean[0] else self._peak(candidate)
            if peak <= self._limit and self.is_allowed(candidate):
                return candidate, peak
        return min(leanest.values(), key=lambda lean: (lean[1], lean[0].time))

    def is_allowed(self, candidate: Candidate) -> bool:
        """Return whether the rules find nothing new that is wrong."""
        problems = (p for p in problems_of(candidate.config) if p.severity != "info")
        return all((p.path, p.severity) in self._present for p in problems)

    def _leanest(self, one: Candidate, ranked: list[Candidate]) -> tuple[Candidate, int]:
        last = max((c for c in ranked if c.group == one.group), key=lambda c: kept_rank(self._budget, c.config))
        return last, self._peak(last)

    def _peak(self, candidate: Candidate) -> int:
        self.num_estimated += 1
        changed = self._budget.with_config(candidate.config)
        assert changed is not None, "each candidate has an estimate"
        return changed.peak_bytes


def _changes(budget: Budget, chosen: tuple[Move, ...]) -> Iterator[FitChange]:
    config, peak, time = budget.config, budget.peak_bytes, relative_time(budget)
    for move in chosen:
        before = tuple(get_path(config, path) for path, _ in move.values)
        config = move.apply_to(config)
        changed = budget.with_config(config)
        assert changed is not None
        now = changed.peak_bytes, relative_time(budget, config)
        yield FitChange(move, before, peak - now[0], now[1] / time)
        peak, time = now


def _further(budget: Budget, config: Config, limit: int) -> tuple[Worth, ...]:
    """Return what else saves memory, but changes what is learned."""
    changed = budget.with_config(config)
    assert changed is not None
    return tuple(w for w in worthwhile_savings(changed, limit_bytes=limit) if w.move.changes_result)


def describe_fit(fit: Fit) -> str:
    """Return the outcome in a few sentences."""
    card = f"{in_gb(fit.card_bytes)} ({in_gb(fit.limit_bytes)} with a reserve)"
    more = "; ".join(f"{w.move.words} saves about {in_gb(w.saved_bytes)}" for w in fit.further)
    further = f" What would help, too, but changes what is learned: {more}." if more else ""
    if fit.fits and not fit.changes:
        return f"The run needs about {in_gb(fit.after_bytes)} and fits {card} as it is, as fast as it can be."
    if fit.fits:
        now = f"about {in_gb(fit.after_bytes)} in place of {in_gb(fit.before_bytes)}"
        return f"With these changes the run needs {now}, which fits {card}. A step takes {time_words(fit)}.{further}"
    nearest = f"With the changes that come nearest the run needs about {in_gb(fit.after_bytes)}."
    if not fit.changes:
        nearest = f"The run needs about {in_gb(fit.after_bytes)}, and none of the choices lowers that."
    last = further or " Use smaller images, or train less of the model."
    return f"Nothing that keeps what the run learns fits {card}. {nearest}{last}"


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
    return f"-{in_gb(saved)}" if saved > 0 else f"+{in_gb(-saved)}"


def factor_words(factor: float) -> str:
    """Return the factor on a step's time as text."""
    return "the same" if 0.995 < factor < 1.005 else f"x {factor:.2f}"


def size_of(text: str) -> int | None:
    """Return the bytes of a size such as "8GB" or "8"; None for anything else."""
    match = _SIZE.fullmatch(text.strip().lower())
    size = float(match[1]) * _UNITS[match[2]] if match is not None and match[2] in _UNITS else 0.0
    return round(size) or None


def free_here(config: Config) -> int | None:
    """Return the free bytes of the device that a config trains on: its GPU, or the computer's memory on a CPU.

    None for a GPU whose memory no tool reports.
    """
    gpu = gpu_memory(config.general.train_device)
    if gpu is not None:
        return gpu.free_bytes
    is_shared = hardware.here().kind_of(config.general.train_device) in ("cpu", "mps")
    return free_memory() if is_shared else None
