"""The verdict on rewards, on drawn courses: learning, flat, falling, and gaming in each of its signs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from modules.objectives.reward_verdict import MIN_MEASUREMENTS, Measurement, RewardVerdict, read_rewards
from modules.rewards.composite import saturation

RISING = [0.50, 0.54, 0.59, 0.63, 0.68, 0.71, 0.76, 0.80]


def verdict(rewards: list[float], kl: float | None = None, **others: list[float]) -> RewardVerdict:
    """Return the verdict on rewards measured every ten steps, with other measures by name."""
    rows: list[dict[str, Any]] = [{name: values[n] for name, values in others.items()} for n in range(len(rewards))]
    return read_rewards(
        [Measurement(10 * n, r, **row) for n, (r, row) in enumerate(zip(rewards, rows, strict=True))], kl
    )


def steady(start: float, end: float) -> list[float]:
    """Eight values from one to another, with a little noise."""
    draw = random.Random(2)
    return [start + (end - start) * n / 7 + 0.002 * draw.uniform(-1, 1) for n in range(8)]


def test_few_measurements_show_nothing() -> None:
    for count in range(MIN_MEASUREMENTS):
        assert verdict(RISING[:count]).finding == "unknown"
    assert verdict(RISING[:MIN_MEASUREMENTS]).finding == "learning"
    assert f"0 of {MIN_MEASUREMENTS} measurements" in verdict([]).sentence


def test_a_rising_reward_is_learning_if_a_held_out_one_agrees() -> None:
    alone = verdict(RISING)
    assert alone.finding == "learning"
    assert "Only a held-out reward shows whether it games" in alone.sentence
    for held_out in (steady(0.2, 0.3), steady(0.2, 0.2), [0.2, 0.21, 0.19, 0.22, 0.2, 0.23, 0.21, 0.2]):
        agreed = verdict(RISING, held_out=held_out, diversity=steady(0.2, 0.15), saturation=steady(0.1, 0.14))
        assert agreed.finding == "learning", agreed
        assert "0.5 to 0.8, and the held-out reward did not fall" in agreed.sentence


@pytest.mark.parametrize(
    ("others", "words", "since"),
    [
        ({"held_out": [*steady(0.2, 0.3)[:4], 0.23, 0.22, 0.2, 0.18]}, "the held-out reward fell since step 30", 30),
        ({"held_out": steady(0.3, 0.1)}, "the held-out reward fell since step 0, 0.3", 0),
        ({"diversity": steady(0.2, 0.05)}, "the diversity of a prompt's images fell from 0.2", None),
        ({"saturation": steady(0.1, 0.4)}, "the saturation of the colours rose from 0.1", None),
        (
            {"held_out": steady(0.3, 0.1), "diversity": steady(0.2, 0.0)},
            "fell since step 0, 0.3018 to 0.09923 and the diversity",
            0,
        ),
    ],
)
def test_a_reward_that_rises_at_the_cost_of_something_is_gamed(
    others: dict[str, list[float]], words: str, since: int | None
) -> None:
    gamed = verdict(RISING, **others)
    assert (gamed.finding, gamed.since_step) == ("gaming", since)
    assert gamed.sentence.startswith("Gaming the reward: it rose, 0.5 to 0.8, but ")
    assert words in gamed.sentence
    assert verdict(RISING[::-1], **others).finding == "falling"  # a run that does not learn games nothing


def test_chance_is_neither_a_rise_nor_a_fall() -> None:
    """Of a hundred courses of noise alone hardly any is taken for a change."""
    draws = [random.Random(seed) for seed in range(100)]
    found = [verdict([0.5 + 0.05 * draw.gauss(0, 1) for _ in range(12)]).finding for draw in draws]
    assert found.count("flat") >= 90
    assert verdict([0.5] * 8).finding == "flat"
    assert verdict([0.0] * 8).finding == "flat"


def test_the_scale_of_a_reward_does_not_matter() -> None:
    for factor, offset in ((1e-3, 0.0), (1.0, -100.0), (1e4, 3.0)):
        scaled = [factor * value + offset for value in RISING]
        assert verdict(scaled).finding == "learning"


def test_the_kl_is_reported() -> None:
    assert "The KL to the reference is 0.0125." in verdict(RISING, kl=0.0125).sentence


def test_the_saturation_of_images() -> None:
    gray, red = np.full((4, 6, 3), 90, np.uint8), np.zeros((2, 2, 3), np.uint8)
    red[..., 0] = 255
    assert saturation([gray]) == 0.0
    assert saturation([red]) == 1.0
    assert saturation([gray, red]) == 0.5
    assert saturation([]) is None
