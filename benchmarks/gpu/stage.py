"""The stages, their cases and findings. The code of a stage is imported in its own process only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rows import Row

FULL_MINUTES, SHORT_MINUTES = 45.0, 10.0


@dataclass(frozen=True, slots=True)
class Check:
    """A comparison with what the program promises: the measured value, the allowed one, and whether it passed."""

    name: str
    got: str
    allowed: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The rest of a case that had no time left, as a phrase: the next call runs the case again, which continues."""

    what: str


Finding = Row | Check | Unfinished


def at_most(name: str, got: float, allowed: float, *, unit: str = "") -> Check:
    """Return the check that a number is not larger than allowed; NaN fails."""
    return Check(name, f"{got:.3g}{unit}", f"at most {allowed:g}{unit}", got <= allowed)


def at_least(name: str, got: float, allowed: float, *, unit: str = "") -> Check:
    """Return the check that a number is not smaller than allowed."""
    return Check(name, f"{got:.3g}{unit}", f"at least {allowed:g}{unit}", got >= allowed)


def within(name: str, got: float, expected: float, share: float, *, unit: str = "") -> Check:
    """Return the check that a number is the expected one, up to a share of it."""
    allowed = f"{expected:.4g}{unit}, {share:.0%} more or less"
    return Check(name, f"{got:.4g}{unit}", allowed, abs(got - expected) <= share * abs(expected))


@dataclass(frozen=True, slots=True)
class Request:
    """The request to a stage's process: the device by name, the folder and the seconds.

    `is_tiny`: with small models and sizes. `is_short`: with fewer cases. `done` are the finished cases.
    """

    stage: int
    device: str
    is_tiny: bool
    work: str
    seconds: float
    is_short: bool = False
    done: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder of models, caches and runs, which the stages share."""
        return Path(self.work)

    @property
    def kept(self) -> Path:
        """The folder of files that the stage keeps for the next call; it is empty if the stage is repeated."""
        return self.folder / kept_of(self.stage)


def kept_of(stage: int) -> str:
    """Return the name of the folder of files that a stage keeps for the next call."""
    return f"stage-{stage:02d}"


@dataclass(frozen=True, slots=True)
class Case:
    """A part of a stage that succeeds or fails by itself. `run(seconds)` should end in that time."""

    name: str
    run: Callable[[float], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: its minutes in a run of 45, and in one of 10 (0: not part of it), and its `cases(request)`."""

    number: int
    name: str
    minutes: float
    short_minutes: float
    cases: str


STAGES: tuple[Stage, ...] = (
    Stage(1, "facts", 1, 0.5, "benchmarks.gpu.facts:cases"),
    Stage(2, "tests", 5, 0, "benchmarks.gpu.suite:cases"),
    Stage(3, "numerics", 3, 1.5, "benchmarks.gpu.numerics:cases"),
    Stage(4, "full size", 9.5, 5.5, "benchmarks.gpu.full_size:cases"),
    Stage(5, "options and presets", 10, 0, "benchmarks.gpu.options:cases"),
    Stage(6, "offloading", 3, 0, "benchmarks.gpu.offload:cases"),
    Stage(7, "quantized formats", 5, 0, "benchmarks.gpu.formats:cases"),
    Stage(8, "resuming", 1.5, 0, "benchmarks.gpu.resume:cases"),
    Stage(9, "sampling", 3, 2, "benchmarks.gpu.sampling:cases"),
    Stage(10, "sharding", 1, 0, "benchmarks.gpu.sharding:cases"),
    Stage(11, "caching and failures", 3, 0, "benchmarks.gpu.failures:cases"),
)


def is_short(minutes: float) -> bool:
    """Whether a run of some minutes has fewer stages, and fewer cases of them."""
    return minutes < (SHORT_MINUTES + FULL_MINUTES) / 2


def stages_of(minutes: float) -> dict[Stage, float]:
    """Return the stages of a run of some minutes with the seconds of each: fewer stages where there is little time."""
    short = is_short(minutes)
    minutes_of = {stage: stage.short_minutes if short else stage.minutes for stage in STAGES}
    share = minutes / (SHORT_MINUTES if short else FULL_MINUTES)
    return {stage: 60 * share * own_minutes for stage, own_minutes in minutes_of.items() if own_minutes}
