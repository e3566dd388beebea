"""The search among settings that save memory (`moves.py`): for advice, "fit to my card" and automatic settings.

Each caller has another question:

- "fit to my card" (`fastest`): the fastest settings that fit and keep what the run learns;
- the advice of preflight (`advice`): the changes, one by one, that bring a run below a limit, the mildest that do;
- automatic checkpointing, and the parts that stay on the device (`fewest`): how many of the blocks that are recomputed,
  or of the parts that leave, the largest first, are enough.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.config.sections.training import SIXTEEN_BITS
from modules.config.usage import needs_autocast, num_references, step_passes
from modules.estimate.passes import count
from modules.estimate.step_time import StepFacts, step_seconds, step_time
from modules.families.spec import PartSpec
from modules.memory.part_plan import PartPlan
from modules.optim.spec import is_fused
from modules.quantization.registry import FORMATS, PLAIN_COST
from modules.settings.shared_types import CheckpointMode
from trainer.preflight.memory_plan import ITEM_BYTES
from trainer.preflight.moves import Move, choices, is_possible, reached_encoders, sacrifices, slowest_part
from trainer.preflight.run_budget import Budget

SLOW = 2.0  # times as long: then changes of the result are listed, too
_WORTH_IT = 0.03  # of the peak; less is not worth mentioning
_VAE_WORK = 36.0  # a VAE encodes and decodes 1024 px with 84 million weights and 7 TFLOP
_TYPICAL = (1024, 1024)  # the shape of a weight

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Worth:
    """A change of settings with the bytes by which it lowers the peak, and its factor on the time of a step."""

    move: Move
    saved_bytes: int
    time_factor: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A combination of options, one for each choice and None for the present one, with its config and relative time."""

    options: tuple[Move | None, ...]
    config: Config
    time: float

    @property
    def moves(self) -> tuple[Move, ...]:
        """The changes, in order."""
        return tuple(m for m in self.options if m is not None)


def fewest(ranked: Sequence[T], fits: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Return the fewest of the first items with which it fits; all of them where nothing fits.

    `fits` of a number of items must hold for every larger number, too.
    """
    return ranked[: bisect_left(range(len(ranked)), True, key=lambda n: fits(ranked[:n]))]


def candidates(budget: Budget) -> list[Candidate]:
    """Return all combinations of the options, the fastest first; of equally fast ones that with fewer changes."""
    combined, times = [], StepTimes(budget)
    for options in itertools.product(*(c.options for c in choices(budget))):
        config = _with_moves(budget.config, (m for m in options if m is not None))
        if is_possible(config):
            combined.append(Candidate(options, config, times.of(config)))
    return sorted(combined, key=lambda c: (round(c.time, 9), len(c.moves)))


class Search:
    """Finds the fastest candidate that fits, with as few estimates as possible.

    All candidates of a group differ in what is kept of activations and layers, the last choice; if the one that keeps
    least does not fit, none of them does.
    """

    def __init__(self, budget: Budget, limit_bytes: int) -> None:
        self._budget, self._limit = budget, limit_bytes
        self._present = {(p.path, p.severity) for p in problems_of(budget.config)}
        self._peaks: dict[tuple[Move | None, ...], int] = {}

    @property
    def num_estimated(self) -> int:
        """The number of settings whose memory was estimated."""
        return len(self._peaks)

    def fastest(self) -> tuple[Candidate, int]:
        """Return the fastest candidate that fits with its peak, or the one with the lowest peak."""
        ranked = candidates(self._budget)
        least_kept = choices(self._budget)[-1].options[-1]
        leanest = {c.options[:-1]: c for c in ranked if c.options[-1] == least_kept}
        for candidate in ranked:
            group = (leanest[candidate.options[:-1]], candidate)
            if all(self._peak(c) <= self._limit for c in group) and self._is_allowed(candidate):
                return candidate, self._peak(candidate)
        return min(((c, self._peak(c)) for c in leanest.values()), key=lambda choice: (choice[1], choice[0].time))

    def _is_allowed(self, candidate: Candidate) -> bool:
        """Return whether the rules find nothing new that is wrong."""
        problems = (p for p in problems_of(candidate.config) if p.severity != "info")
        return all((p.path, p.severity) in self._present for p in problems)

    def _peak(self, candidate: Candidate) -> int:
        if candidate.options not in self._peaks:
            self._peaks[candidate.options] = peak_with(self._budget, candidate.moves)
        return self._peaks[candidate.options]


def advice(budget: Budget, *, limit_bytes: int) -> list[Worth]:
    """Return the changes that together bring the peak to a limit, the largest saving first. Raises as `estimate` does.

    They are the mildest that do: none can be left out, or be a milder option of its choice. Changes of what the run
    learns are among them if the others do not suffice, or make a step much longer. If nothing suffices, they are all
    that save something noteworthy.
    """
    moves: list[Move] = []
    for others in ((), tuple(sacrifices(budget))):
        ways = _ways(budget, others)
        moves = _mildest(budget, ways, limit_bytes)
        if peak_with(budget, moves) <= limit_bytes:
            moves = _necessary(budget, ways, moves, limit_bytes)
            worths = worth_alone(budget, moves)
            if others or all(w.time_factor < SLOW for w in worths):
                return worths
    return [w for w in worth_alone(budget, moves) if is_noteworthy(w, budget.peak_bytes)]


def worth_alone(budget: Budget, moves: Iterable[Move]) -> list[Worth]:
    """Return the savings and costs of each change by itself, the largest saving first."""
    times, worths = StepTimes(budget), list[Worth]()
    for move in moves:
        time = times.of(move.apply_to(budget.config))
        worths.append(Worth(move, budget.peak_bytes - peak_with(budget, [move]), time / times.of(budget.config)))
    return sorted(worths, key=lambda w: -w.saved_bytes)


def worth_in_turn(budget: Budget, moves: Sequence[Move]) -> list[Worth]:
    """Return the savings and costs of each change after the ones before it."""
    times, worths = StepTimes(budget), list[Worth]()
    peak, time = budget.peak_bytes, times.of(budget.config)
    for n, move in enumerate(moves, start=1):
        now = peak_with(budget, moves[:n]), times.of(_with_moves(budget.config, moves[:n]))
        worths.append(Worth(move, peak - now[0], now[1] / time))
        peak, time = now
    return worths


def peak_with(budget: Budget, moves: Iterable[Move]) -> int:
    """Return the peak with all of the changes."""
    changed = budget.with_config(_with_moves(budget.config, moves))
    assert changed is not None, "each change has an estimate"
    return changed.peak_bytes


def is_noteworthy(worth: Worth, peak_bytes: int) -> bool:
    """Return whether a change saves a part of the peak that is worth mentioning."""
    return worth.saved_bytes > _WORTH_IT * peak_bytes


class StepTimes:
    """The time of an optimizer step of a run under changed settings, in the units of `step_time`."""

    def __init__(self, budget: Budget) -> None:
        self._budget, self._part = budget, slowest_part(budget)
        run, weights = budget.run, budget.passes.weights
        self._num_weights = self._count(self._part)
        self._num_encoder_weights = sum(self._count(p) for p in reached_encoders(budget))
        trained = ((n, p) for n, p in run.plans.items() if p.trains != "nothing")
        self._num_trained = sum(count(weights(n, p).trained_shapes(p)) for n, p in trained)
        self._num_factors = len(weights(self._part.name, run.plans[self._part.name]).adapter)
        self._pixels = max((width * height for width, height in run.sizes), default=0)

    def of(self, config: Config) -> float:
        """Return the time with the settings of a config."""
        # It rounds latents: only where needed.
        return step_time(self.facts(config)) * (1.001 if self._narrows_vae(config) else 1.0)

    def seconds(self, config: Config, *, num_cores: int) -> float:
        """Return about how long a step of the config's method takes: a step of Denoising, times the method's passes.

        Without decoding and scoring the images that a method samples.
        """
        training = config.training
        denoising = replace(self.facts(config), batch_size=training.batch_size)
        passes = step_passes(config).times_denoising(training.batch_size * training.accumulation_steps)
        return step_seconds(denoising, num_cores=num_cores) * passes

    def facts(self, config: Config) -> StepFacts:
        """Return the facts on which the time with the settings of a config depends."""
        part, run = self._part, self._budget.run
        settings, training = config.part(part.name), config.training
        dtype = settings.dtype
        has_autocast = training.precision in SIXTEEN_BITS and needs_autocast(config)
        fuses_norms = run.plans[part.name].fuses_norms and not has_autocast
        return StepFacts(
            num_weights=self._num_weights,
            weight_bytes=_stored_bytes(dtype),
            pixels=self._pixels * (1 + num_references(config)),
            batch_size=training.batch_size * run.images_per_pass,
            accumulation_steps=training.accumulation_steps,
            num_trained=self._num_trained,
            num_encoder_weights=self._num_encoder_weights,
            trains_weights=run.plans[part.name].trains == "full",
            checkpointing=_mode_of(part, settings.checkpointing),
            num_operations=self._budget.passes.num_operations(part.name, fuses_norms=fuses_norms),
            num_factors=self._num_factors,
            has_autocast=has_autocast,
            offloads_activations=settings.offload_activations and settings.checkpointing not in ("off", "selective"),
            offload_fraction=settings.offload_fraction,
            unpacking_bytes=_unpacking_bytes(dtype),
            is_cast=dtype == "float32" and training.precision in SIXTEEN_BITS,
            is_fused=is_fused(training.optimizer),
            moves_average=training.ema.mode == "temp_device",
            on_gpu=self._budget.on_gpu,
            work=_VAE_WORK if part.role == "vae" else part.model.work,
        )

    def _count(self, part: PartSpec) -> int:
        return count(self._budget.passes.weights(part.name, PartPlan()).shapes.values())

    def _narrows_vae(self, config: Config) -> bool:
        names = config.family.names_of("vae")
        return any(config.part(n).dtype != self._budget.config.part(n).dtype for n in names)


def _mode_of(part: PartSpec, mode: CheckpointMode) -> CheckpointMode:
    """Return the mode with the same effect on a part: if it has only transformer blocks, "transformer" is "block"."""
    return "block" if mode == "transformer" and not part.model.other_blocks else mode


def _with_moves(config: Config, moves: Iterable[Move]) -> Config:
    """Return a config with changes; a whole section is changed before its settings, to keep these."""
    for move in sorted(moves, key=lambda m: min(path.count(".") for path, _ in m.values)):
        config = move.apply_to(config)
    return config


def _combinable(config: Config, moves: Iterable[Move]) -> list[Move]:
    """Return the moves without those that do not go together with the ones before them."""
    taken: list[Move] = []
    for move in moves:
        if is_possible(_with_moves(config, [*taken, move])):
            taken.append(move)
    return taken


def _ways(budget: Budget, others: Iterable[Move]) -> list[Sequence[Move]]:
    """Return the leaner options of each choice, the mildest first, and each of the other moves by itself."""
    leaner = (_without_slower(budget, c.leaner) for c in choices(budget))
    return [*filter(None, leaner), *([move] for move in others)]


def _mildest(budget: Budget, ways: Sequence[Sequence[Move]], limit_bytes: int) -> list[Move]:
    """Return the first, second, ... option of each way, or its last: the mildest that fit together."""
    num_levels = max(map(len, ways), default=1)
    levels = [_combinable(budget.config, (options[:n][-1] for options in ways)) for n in range(1, num_levels + 1)]
    milder = fewest(levels[:-1], lambda tried: peak_with(budget, levels[len(tried)]) <= limit_bytes)
    return levels[len(milder)]


def _without_slower(budget: Budget, moves: Sequence[Move]) -> list[Move]:
    """Return moves, in the order of memory, without those that are slower than one that needs less memory."""
    times, kept, fastest = StepTimes(budget), list[Move](), math.inf
    for move in reversed(moves):
        if (time := times.of(move.apply_to(budget.config))) < fastest:
            kept.append(move)
            fastest = time
    return kept[::-1]


def _necessary(budget: Budget, ways: Sequence[Sequence[Move]], moves: Sequence[Move], limit_bytes: int) -> list[Move]:
    """Return the changes that the limit requires; others are left out, or become a milder option of their choice.

    Slow ones are the first to become milder, then sacrifices.
    """
    needed = list(moves)
    worths = worth_alone(budget, moves)
    for worth in sorted(worths, key=lambda w: (w.time_factor < SLOW, not w.move.changes_result, w.saved_bytes)):
        rest = [move for move in needed if move != worth.move]
        options = next(way for way in ways if worth.move in way)
        options = options[: options.index(worth.move) + 1]
        milder = fewest(options, partial(_fits_with_last, budget, rest, limit_bytes))
        needed = [*rest, *milder[-1:]]
    return needed


def _fits_with_last(budget: Budget, moves: Sequence[Move], limit_bytes: int, tried: Sequence[Move]) -> bool:
    return peak_with(budget, [*moves, *tried[-1:]]) <= limit_bytes


def _stored_bytes(dtype: str) -> float:
    """Return the bytes of a weight as it is stored; those packed in a file of the model have about a byte."""
    if dtype not in FORMATS:
        return ITEM_BYTES[dtype]
    chosen = FORMATS[dtype]
    return 1.0 if chosen.is_stored else chosen.stored_bytes(_TYPICAL) / math.prod(_TYPICAL)


def _unpacking_bytes(dtype: str) -> float:
    """Return the bytes that a pass moves for each quantized weight; of GGUF's types, about as many as of 4 bits."""
    if dtype not in FORMATS:
        return 0.0
    if (cost := FORMATS[dtype].cost) is not None:
        return cost.moved_bytes_per_weight
    measured = (f for f in FORMATS.values() if f.cost is not None and not f.is_stored)
    return (min(measured, key=lambda f: f.bytes_per_weight).cost or PLAIN_COST).moved_bytes_per_weight
