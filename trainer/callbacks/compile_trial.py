"""Whether the blocks of the denoiser are compiled, decided by measuring steps of the run itself.

How much compiling saves depends on the card, the model and the sizes: published figures range from 25 % less time to
21 % more. So the first steps run as they are, the next ones compiled, and the faster way stays if the rest of the run
is long enough for the seconds that compiling costs. All of these are ordinary training steps.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from modules.data.buckets import Size
from modules.data.plans import EpochPlans
from modules.memory.compiled_blocks import Compilation
from modules.system.atomic import write_text
from modules.system.problem import count
from trainer.events import Event
from trainer.machine_events import SettingChosen
from trainer.step.callback import DryRunCheck, DryRunState, StepView
from trainer.step.counters import Counters

StepSize = tuple[tuple[Size, int], ...]
"""The bucket and the number of images of each micro-batch of a step: other sizes take another time."""

_SETTING = "model.compile"
_WARM_UP_STEPS, _PLAIN_STEPS = 2, 12
"""Of the first steps, so many run as they are; the time of the very first ones does not count."""
_ENOUGH_STEPS, _MAX_COMPILED_STEPS = 6, 40
_BEST_GAIN = 0.25
"""The largest saving in published measurements of training with compiled blocks."""
_ASSUMED_SECONDS = 60.0
"""The time of compiling the blocks for one size before it was measured; it is minutes on a slow machine."""


@dataclass(frozen=True, slots=True)
class CompileTimes:
    """Seconds of a step, as it is and compiled, over the same sizes; seconds of compiling to come; steps to come."""

    plain: float
    compiled: float
    compile_seconds: float
    steps_left: int

    @property
    def saved_seconds(self) -> float:
        """The seconds that the rest of the run is shorter with compiled blocks; negative if it is longer."""
        return (self.plain - self.compiled) * self.steps_left - self.compile_seconds


def pays(times: CompileTimes) -> bool:
    """Return whether the rest of a run is shorter with compiled blocks. What was spent on compiling does not count."""
    return times.saved_seconds > 0


def may_pay(plain: float, compile_seconds: float, steps_left: int) -> bool:
    """Return whether compiling can pay at all: with the best gain that was ever published."""
    return pays(CompileTimes(plain, plain * (1 - _BEST_GAIN), compile_seconds, steps_left))


@dataclass(frozen=True, slots=True)
class CompileChoice:
    """The choice of a run: its steps from `compiled_from` on were measured compiled, and it chose before `chosen_at`.

    Steps are counted from 0.
    """

    compiled_from: int
    chosen_at: int
    is_compiled: bool

    def covers(self, step: int) -> bool:
        """Return whether a step runs compiled: the same in a run that is resumed from any backup."""
        return self.is_compiled if step >= self.chosen_at else step >= self.compiled_from


def read_choice(path: Path) -> CompileChoice | None:
    """Return the choice in a file; None without one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return CompileChoice(int(data["compiled_from"]), int(data["chosen_at"]), bool(data["is_compiled"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def sizes_of_steps(plans: EpochPlans, epoch: int) -> list[StepSize]:
    """Return the sizes of the steps of an epoch, in their order."""
    groups, table = plans.accumulation_groups(epoch), plans.sizes
    sizes = [tuple((table.size_of(m[0]), len(m)) for m in group) for group in groups]
    return [size for size in sizes for _ in range(plans.steps_per_group)]


class CompileTrial:
    """Measures steps, chooses once, and stores the choice.

    Before the first compiled step it stores that nothing is compiled, until it has chosen: a run that ends there, for
    example because memory does not suffice, can be resumed. One that ends earlier measures again.
    """

    def __init__(
        self,
        compilation: Compilation,
        *,
        path: Path,
        first_step: int,
        total_steps: int,
        sizes: Callable[[int], Sequence[StepSize]],
        emit: Callable[[Event], None],
    ) -> None:
        """`path` is the file of the choice, `sizes(epoch)` are the sizes of the steps of an epoch."""
        self._compilation = compilation
        self._path = path
        self._compiled_from = first_step + _PLAIN_STEPS
        self._warm_from = first_step + _WARM_UP_STEPS
        self._total_steps = total_steps
        self._sizes = sizes
        self._emit = emit
        self._seconds: dict[bool, dict[StepSize, list[float]]] = {False: defaultdict(list), True: defaultdict(list)}
        self._compiled_sizes: set[StepSize] = set()
        self._num_graphs = 0
        self._choice = read_choice(path)
        self._switch(first_step)

    def is_due(self, before: Counters, now: Counters) -> bool:
        """Return whether a step is measured: its end is then awaited, so that it does not overlap with the next one."""
        return self._choice is None or now.step in (self._choice.compiled_from, self._choice.chosen_at)

    def after_step(self, view: StepView) -> None:
        """Measure the step, choose once enough is known, and set how the next step runs."""
        if self._choice is None:
            self._measure(view)
            self._choose(view.now, view.before.epoch)
            if self._choice is None and view.now.step == self._compiled_from:
                self._store(CompileChoice(view.now.step, view.now.step, False))
        self._switch(view.now.step)

    def dry_run_checks(self, state: DryRunState) -> tuple[DryRunCheck, ...]:
        """Return no checks: the dry run's training step covers compiled blocks."""
        return ()

    def _switch(self, step: int) -> None:
        is_on = step >= self._compiled_from if self._choice is None else self._choice.covers(step)
        if is_on and not self._compilation.failure:
            self._compilation.turn_on()
        else:
            self._compilation.turn_off()

    def _measure(self, view: StepView) -> None:
        size = self._sizes(view.before.epoch)[view.before.epoch_step]
        num_graphs = self._compilation.counts.num_graphs
        is_new, self._num_graphs = num_graphs > self._num_graphs, num_graphs
        if self._compilation.is_on:
            self._compiled_sizes.add(size)
        if not is_new and view.before.step >= self._warm_from and not view.outcome.was_skipped:
            self._seconds[self._compilation.is_on][size].append(view.seconds)

    def _choose(self, now: Counters, epoch: int) -> None:
        """Make the choice once it can be made; `epoch` is the epoch of the last step."""
        if now.step < self._compiled_from:
            return
        steps_left = self._total_steps - now.step
        if self._compilation.failure:
            self._decide(now.step, False, f"they cannot be compiled: {self._compilation.failure}")
            return
        plain, to_come = _mean(self._seconds[False], self._seconds[False]), self._seconds_to_come(epoch)
        if not may_pay(plain, to_come, steps_left):
            self._decide(now.step, False, f"with {count(steps_left, 'step')} left, compiling cannot pay")
            return
        both = {size: n for size, n in self._seconds[True].items() if size in self._seconds[False]}
        is_over = now.step - self._compiled_from >= _MAX_COMPILED_STEPS
        if sum(map(len, both.values())) < _ENOUGH_STEPS and not is_over:
            return
        if not both:
            self._decide(now.step, False, "no size of images occurred often enough to be measured both ways")
            return
        times = CompileTimes(_mean(self._seconds[False], both), _mean(both, both), to_come, steps_left)
        self._decide(now.step, pays(times), self._words(times))

    def _seconds_to_come(self, epoch: int) -> float:
        """Return how long compiling takes for the sizes of an epoch that have not been compiled yet."""
        num_compiled = len(self._compiled_sizes)
        each = self._compilation.counts.seconds / num_compiled if num_compiled else _ASSUMED_SECONDS
        return each * len(set(self._sizes(epoch)) - self._compiled_sizes)

    def _words(self, times: CompileTimes) -> str:
        spent = self._compilation.counts.seconds
        percent = (times.compiled / times.plain - 1) * 100
        change = f"{abs(percent):.0f} % {'less' if percent < 0 else 'more'}"
        return (
            f"a step takes {times.compiled:.3g} s compiled and {times.plain:.3g} s without ({change}), "
            f"compiling has taken {spent:,.0f} s and will take {times.compile_seconds:,.0f} s more, and "
            f"{count(times.steps_left, 'step')} are left"
        )

    def _decide(self, step: int, is_compiled: bool, why: str) -> None:
        is_tried = self._compilation.counts.num_graphs > 0 or bool(self._compilation.failure)
        self._choice = CompileChoice(self._compiled_from if is_tried else step, step, is_compiled)
        self._store(self._choice)
        words = "The denoiser's blocks are compiled" if is_compiled else "The denoiser's blocks are not compiled"
        self._emit(SettingChosen(_SETTING, f"{words}: {why}."))

    def _store(self, choice: CompileChoice) -> None:
        write_text(self._path, json.dumps(_as_json(choice), indent=2) + "\n")


def _as_json(choice: CompileChoice) -> dict[str, int | bool]:
    return {
        "compiled_from": choice.compiled_from,
        "chosen_at": choice.chosen_at,
        "is_compiled": choice.is_compiled,
    }


def _mean(seconds: Mapping[StepSize, list[float]], weights: Mapping[StepSize, list[float]]) -> float:
    """Return the mean of the median seconds of sizes, each weighted by its number of times in `weights`."""
    total = sum(len(times) for times in weights.values())
    return sum(median(seconds[size]) * len(times) for size, times in weights.items()) / max(total, 1)
