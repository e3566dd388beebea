"""The warning about steps that become slower."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

import pytest

from trainer.callbacks.pace import EarlierPace, PaceWatch, Peaks
from trainer.events import Event, WarningRaised
from trainer.machine_events import PaceMeasured
from trainer.step.callback import StepView
from trainer.step.counters import Counters
from trainer.step.outcome import StepOutcome


def events_of(seconds: Iterable[float], causes: Sequence[str] = (), earlier: EarlierPace | None = None) -> list[Event]:
    """Return the events of a run whose steps take these times."""
    events: list[Event] = []

    def found() -> Iterator[str]:
        yield from causes

    watch = PaceWatch(events.append, found, peaks=lambda: Peaks(5, 2, 3), earlier=lambda: earlier)
    outcome = StepOutcome(0.1, 1.0, 1, was_skipped=False, learning_rates={})
    for number, step_seconds in enumerate(seconds):
        before, now = Counters(step=number), Counters(step=number + 1)
        watch.after_step(StepView(before, now, outcome, step_seconds, 1000, ("unet",)))
    watch.report()
    return events


def warnings_after(
    seconds: Iterable[float], causes: Sequence[str] = (), earlier: EarlierPace | None = None
) -> list[str]:
    """Return the warnings of a run whose steps take these times."""
    events = events_of(seconds, causes, earlier)
    return [event.message for event in events if isinstance(event, WarningRaised)]


def test_a_run_that_becomes_slower_is_reported_once_with_the_cause() -> None:
    [message] = warnings_after([0.2] * 200 + [0.5] * 400, ["the computer has swapped 3.0 GB"])
    assert message == (
        "Steps have become slower: 0.5 s each up to step 310, 2.5 times the 0.2 s of before. "
        "Likely: the computer has swapped 3.0 GB."
    )
    [unexplained] = warnings_after([0.2] * 200 + [0.5] * 400)
    assert unexplained.endswith("No cause was found in memory, swap and load.")


def test_a_slow_start_other_sizes_and_single_slow_steps_are_not_reported() -> None:
    assert warnings_after([30.0] * 10 + [0.2] * 400) == []
    assert warnings_after([0.2, 0.8] * 300) == []
    assert warnings_after(([0.2] * 49 + [20.0]) * 12) == []
    assert warnings_after([0.2] * 200 + [0.5] * 60 + [0.2] * 200) == [], "one slow window"
    assert warnings_after([0.02] * 200 + [0.1] * 400) == [], "less than a tenth of a second"


@pytest.mark.parametrize(
    ("sizes", "noise"),
    [((1.0,), 0.4), ((1.0, 4.0), 0.05), ((1.0, 4.0, 4.0), 0.05), ((1.0, 2.0, 4.0), 0.05)],  # seconds of equal shares
)
def test_sizes_in_random_order_and_noise_are_not_reported_but_much_slower_steps_are(
    sizes: tuple[float, ...], noise: float
) -> None:
    """The median of a window jumps between two sizes: each such run was called slower."""
    num_reported = [0, 0]
    for seed in range(10):
        draw = random.Random(seed)
        steps = [draw.choice(sizes) * draw.lognormvariate(0, noise) for _ in range(1500)]
        slower = [seconds * (1.4 if number > 700 else 1) for number, seconds in enumerate(steps)]
        for kind, seconds in enumerate((steps, slower)):
            num_reported[kind] += bool(warnings_after(seconds))
    assert num_reported[0] <= 1
    assert num_reported[1] >= 9


def test_slow_steps_are_noticed_in_minutes_and_again_after_a_recovery() -> None:
    assert len(warnings_after([20.0] * 30 + [40.0] * 10)) == 1
    once = [0.2] * 100 + [0.6] * 200
    assert len(warnings_after(once * 2)) == 2
    assert len(warnings_after(once * 6)) == 3


EARLIER = EarlierPace("2026-03-01", 0.2, "Changed since: the driver is 555 (was 550); peft.", "Likely: the driver.")


def test_a_run_that_is_slow_from_its_start_is_compared_with_the_last_good_run() -> None:
    [message] = warnings_after([0.5] * 400, earlier=EARLIER)
    assert message == (
        "A step takes 0.5 s, 2.5 times the 0.2 s of the run 2026-03-01 with these settings. "
        "Changed since: the driver is 555 (was 550); peft. Likely: the driver."
    )
    [message] = warnings_after([0.5] * 400, ["the card's memory is full"], EARLIER)
    assert message.endswith("; peft. Likely: the card's memory is full.")
    assert warnings_after([0.25] * 400, earlier=EARLIER) == [], "25 % slower"
    assert warnings_after([0.5] * 60 + [0.2] * 50, earlier=EARLIER) == [], "one slow window"


def test_the_pace_and_the_memory_are_measured_at_the_end() -> None:
    assert events_of([]) == []
    assert events_of([9.0, 1.0, 1.0]) == [PaceMeasured(3, 1.0, 5, 2, 3)]
    assert events_of([9.0] * 10 + [0.5] * 9) == [PaceMeasured(19, 0.5, 5, 2, 3)]
    assert events_of([9.0] * 10 + [0.4] * 150 + [0.9] * 100)[-1] == PaceMeasured(260, 0.4, 5, 2, 3)
