"""How far a run is: steps, epochs, images, seconds, skipped steps, and the running mean of losses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.settings.every import Moment
from trainer.step.counters import Counters


def step(counters: Counters, *, epoch_steps: int = 3, loss: float | None = 1.0, **changes: Any) -> Counters:
    values = {"num_images": 2, "seconds": 0.5, "was_skipped": False, **changes}
    was_skipped = values.pop("was_skipped")
    return counters.after_step(epoch_steps=epoch_steps, **values).with_outcome(loss=loss, was_skipped=was_skipped)


def test_the_first_step() -> None:
    assert step(Counters()) == Counters(
        step=1, epoch=0, epoch_step=1, images_seen=2, training_seconds=0.5, num_losses=1, smoothed_loss=1.0
    )
    assert Counters() == Counters(0, 0, 0, 0, 0.0, 0, 0, 0, None), "a step gives new counters and leaves the old"


@given(epoch_steps=st.integers(1, 7), steps=st.integers(0, 40))
def test_the_last_step_of_an_epoch_begins_the_next(epoch_steps: int, steps: int) -> None:
    counters = Counters()
    for _ in range(steps):
        counters = step(counters, epoch_steps=epoch_steps)
    assert counters.step == steps
    assert (counters.epoch, counters.epoch_step) == divmod(steps, epoch_steps)
    assert counters.images_seen == 2 * steps
    assert counters.training_seconds == 0.5 * steps
    assert counters.moment == Moment(steps, steps // epoch_steps, 0.5 * steps)


def test_epochs_of_different_lengths() -> None:
    counters, places = Counters(), []
    for epoch_steps in (2, 2, 1, 3, 3, 3):
        counters = step(counters, epoch_steps=epoch_steps)
        places.append((counters.epoch, counters.epoch_step))
    assert places == [(0, 1), (1, 0), (2, 0), (2, 1), (2, 2), (3, 0)]


def test_an_epoch_that_has_become_shorter_ends() -> None:
    """An image turned out broken after a resume."""
    assert step(Counters(step=5, epoch=1, epoch_step=4), epoch_steps=3).epoch == 2


def test_skipped_steps_are_counted_and_in_a_row() -> None:
    counters, rows = Counters(), []
    for was_skipped in (True, True, False, True, False, False):
        counters = step(counters, loss=None if was_skipped else 1.0, was_skipped=was_skipped)
        rows.append((counters.num_skipped, counters.num_skipped_in_a_row))
    assert rows == [(1, 1), (2, 2), (2, 0), (3, 1), (3, 0), (3, 0)]
    assert counters.step == 6, "a skipped step is a step"
    assert counters.num_losses == 3


def test_the_first_losses_weigh_alike() -> None:
    counters = Counters()
    for number, loss in enumerate((4.0, 2.0, 9.0, 1.0), start=1):
        counters = step(counters, loss=loss)
        assert counters.smoothed_loss == pytest.approx(sum((4.0, 2.0, 9.0, 1.0)[:number]) / number)


def test_later_the_mean_forgets_by_a_fiftieth() -> None:
    counters = Counters(num_losses=1000, smoothed_loss=1.0)
    assert step(counters, loss=2.0).smoothed_loss == pytest.approx(1.02)
    assert step(Counters(num_losses=49, smoothed_loss=1.0), loss=2.0).smoothed_loss == pytest.approx(1.02)
    assert step(Counters(num_losses=48, smoothed_loss=1.0), loss=2.0).smoothed_loss == pytest.approx(1 + 1 / 49)


def test_a_step_without_a_loss_leaves_the_mean() -> None:
    assert step(Counters(), loss=None, was_skipped=True).smoothed_loss is None
    counters = Counters(num_losses=3, smoothed_loss=0.5)
    after = step(counters, loss=None, was_skipped=True)
    assert (after.smoothed_loss, after.num_losses) == (0.5, 3)
    assert step(step(Counters(), loss=None, was_skipped=True), loss=3.0).smoothed_loss == 3.0


@given(losses=st.lists(st.floats(0, 100), min_size=1, max_size=200))
def test_the_mean_lies_among_the_losses(losses: list[float]) -> None:
    counters = Counters()
    for loss in losses:
        counters = step(counters, loss=loss)
    assert counters.smoothed_loss is not None
    assert min(losses) - 1e-9 <= counters.smoothed_loss <= max(losses) + 1e-9


@given(counters=st.from_type(Counters))
def test_counters_come_back_from_a_backup(counters: Counters) -> None:
    restored = Counters.from_json(json.loads(json.dumps(counters.to_json())))
    assert repr(restored) == repr(counters)


def test_another_step_of_the_epoch() -> None:
    assert Counters(step=9, epoch=2, epoch_step=1).with_epoch_step(0) == Counters(step=9, epoch=2, epoch_step=0)
