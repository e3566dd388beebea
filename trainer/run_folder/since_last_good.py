"""The changes since the last good run: the newest finished run of the workspace and the family before a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.system.problem import format_size
from trainer.machine_events import PaceMeasured
from trainer.run_folder.differences import Difference, Topic, differences, list_differences, setting_differences
from trainer.run_folder.recipe import Machine, Recipe, known_recipe
from trainer.run_folder.records import RunRecord, raw_settings, read_record, run_dirs
from trainer.run_folder.run_dir import age_of

SLOWER = 1.3
"""Times the seconds of a step: less differs from run to run."""
MIN_PACE_STEPS = 20
"""Of a run whose pace is compared: the first steps choose kernels and compile blocks."""
_MORE_MEMORY, _MIN_BYTES = 1.1, 200e6
_NOT_OF_A_STEP = (
    "general.seed",
    "concepts.",
    "training.epochs",
    "training.schedule.",
    "sampling.",
    "validation.",
    "reward.",
    "output.",
)
_RATE = ".learning_rate"
_MAX_LOOKED_AT = 50  # runs
CAUSES_OF_SLOWNESS: tuple[Topic, ...] = ("machine", "version", "choice", "model", "images", "setting", "pace")
CAUSES_OF_FAILURE: tuple[Topic, ...] = ("setting", "version", "machine", "model", "images", "choice", "pace")


@dataclass(frozen=True, slots=True)
class SinceLastGood:
    """The last good run before a run, and how the run differs from it."""

    good: RunRecord
    differences: tuple[Difference, ...]

    @property
    def has_equal_steps(self) -> bool:
        """Whether no setting differs that changes what a step computes."""
        return all(d.topic != "setting" for d in self.of_steps().differences)

    def by_likelihood(self, causes: Sequence[Topic]) -> list[Difference]:
        """Return the differences apart from the pace, in the order of their topics as causes."""
        return sorted(
            (d for d in self.differences if d.topic != "pace"),
            key=lambda d: (causes.index(d.topic), d.path.startswith(_NOT_OF_A_STEP)),
        )

    def of_steps(self) -> SinceLastGood:
        """Return the same without settings that do not change the computation of a step."""
        return SinceLastGood(self.good, tuple(d for d in self.differences if not _is_outside_of_steps(d)))

    def sentence(self, causes: Sequence[Topic], *, names_cause: bool = True) -> str:
        """Return a sentence about the changes, the first topics first; or that nothing changed.

        With `names_cause`, for a run that failed or became slower, the first one is called the likely cause.
        """
        ordered = self.by_likelihood(causes)
        if not ordered:
            return (
                f"Nothing that is recorded has changed since the last finished run, {self.good.name}: settings, "
                "versions, device, models and images are the same."
            )
        likely = f" Likely the cause: {ordered[0].text}." if names_cause and len(ordered) > 1 else ""
        return f"Changed since the last finished run, {self.good.name}: {list_differences(ordered)}.{likely}"


def _is_outside_of_steps(difference: Difference) -> bool:
    path = difference.path
    return difference.topic == "setting" and (path.startswith(_NOT_OF_A_STEP) or path.endswith(_RATE))


def since_last_good(run_dir: Path, now: Recipe | None = None) -> SinceLastGood | None:
    """Return the changes since the last good run before a run; None without one.

    `now` is the run's recipe, by default the one in its folder.
    """
    good = last_good_run(run_dir)
    return None if good is None else compare_with(good, run_dir, now)


def compare_with(good: RunRecord, run_dir: Path, now: Recipe | None = None) -> SinceLastGood:
    """Return how a run differs from another one: in what decided its result, in its pace and its memory."""
    before, after = known_recipe(good.run_dir), now or known_recipe(run_dir)
    if before is not None and after is not None:
        changes = differences(before, after)
    else:  # of a version without recipes only the settings are known
        changes = tuple(setting_differences(*(_of_settings(place) for place in (good.run_dir, run_dir))))
    return SinceLastGood(good, (*changes, *_pace_differences(good.pace, read_record(run_dir).pace)))


def last_good_run(run_dir: Path) -> RunRecord | None:
    """Return the newest run of the same workspace and family before a run that has finished; None without one."""
    family, age = _family_of(run_dir), age_of(run_dir)
    earlier = (other for other in run_dirs(run_dir.parent.parent) if age_of(other) < age)
    for _, other in zip(range(_MAX_LOOKED_AT), earlier, strict=False):
        if _family_of(other) != family:
            continue
        record = read_record(other)
        if record.status.is_complete and record.step:
            return record
    return None


def _pace_differences(before: PaceMeasured | None, now: PaceMeasured | None) -> Iterator[Difference]:
    if before is None or now is None:
        return
    was, is_now = before.step_seconds, now.step_seconds
    if min(before.num_steps, now.num_steps) >= MIN_PACE_STEPS and not was / SLOWER <= is_now <= was * SLOWER:
        yield Difference("pace", f"a step takes {is_now:.3g} s (was {was:.3g} s)")
    for label, name in (("card", "card_peak"), ("computer", "process_peak")):
        held, holds = getattr(before, name), getattr(now, name)
        if abs(holds - held) > max(_MIN_BYTES, (_MORE_MEMORY - 1) * held):
            yield Difference(
                "pace", f"the run takes {format_size(holds)} of the {label}'s memory (was {format_size(held)})"
            )


def _of_settings(run_dir: Path) -> Recipe:
    return Recipe(raw_settings(run_dir), {}, Machine("", "", ""), (), ())


def _family_of(run_dir: Path) -> str:
    """Return the family in the settings of a run; empty if they cannot be read."""
    model = raw_settings(run_dir).get("model")
    family = model.get("family") if isinstance(model, dict) else None
    return str(family.get("name", "")) if isinstance(family, dict) else str(family or "")
