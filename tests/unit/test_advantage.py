"""Advantages: their statistics, their invariance, images without a score, and prompts whose scores are equal."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.rewards.advantage import (
    PromptTracker,
    batch_advantages,
    combine_advantages,
    group_advantages,
    untrained_share,
)
from modules.sampling.rollout import mean_diversity, pairwise_distance

NAN = math.nan
SCORES = st.lists(st.integers(-1000, 1000).map(lambda n: n / 100), min_size=2, max_size=12)


def test_advantages_are_standard_deviations_from_the_mean() -> None:
    assert batch_advantages([1.0, 2.0, 3.0]) == pytest.approx([-math.sqrt(1.5), 0.0, math.sqrt(1.5)])
    assert group_advantages([1.0, 2.0, 30.0, 10.0], [0, 0, 1, 1]) == pytest.approx([-1.0, 1.0, 1.0, -1.0])


@given(SCORES, st.floats(0.01, 100), st.floats(-100, 100))
def test_a_groups_advantage_does_not_depend_on_the_rewards_scale(scores: list[float], a: float, b: float) -> None:
    groups = [0] * len(scores)
    moved = [a * s + b for s in scores]
    advantages = group_advantages(scores, groups)
    if any(advantages) == any(group_advantages(moved, groups)):  # a small spread drowns in the rounding of a large b
        assert group_advantages(moved, groups) == pytest.approx(advantages, abs=1e-6)
        turned = [-a * s + b for s in scores]
        assert group_advantages(turned, groups) == pytest.approx([-x for x in advantages], abs=1e-6)


@given(SCORES, st.integers(0, 3))
def test_an_image_without_a_score_is_left_out(scores: list[float], where: int) -> None:
    with_gap = [*scores[:where], NAN, *scores[where:]]
    advantages = group_advantages(with_gap, [7] * len(with_gap))
    assert advantages.pop(min(where, len(scores))) == 0.0
    assert advantages == group_advantages(scores, [7] * len(scores))
    assert math.inf not in batch_advantages([1.0, 2.0, math.inf])


def test_equal_scores_have_no_advantage_and_are_counted() -> None:
    # 0.1 + 0.2 and 0.3 differ by rounding only.
    scores, groups = [0.1 + 0.2, 0.3, 0.3, 1.0, 2.0, NAN, NAN, NAN, 4.0], [0, 0, 0, 1, 1, 2, 2, 3, 3]
    advantages = group_advantages(scores, groups)
    assert advantages == [0.0, 0.0, 0.0, -1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert untrained_share(advantages, groups) == 0.75
    assert batch_advantages([5.0] * 4) == [0.0] * 4
    assert batch_advantages([NAN] * 2) == [0.0] * 2


def test_a_group_of_one_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least two images"):
        group_advantages([1.0, 2.0, 3.0], [0, 0, 1])


def test_the_tracker_compares_a_prompt_with_its_own_latest_images() -> None:
    tracker = PromptTracker(size=4, min_count=3)
    # Too few of either prompt: compared with the whole rollout.
    assert tracker.advantages("r", [1.0, 3.0], ["cat", "dog"]) == pytest.approx([-1.0, 1.0])
    assert tracker.advantages("r", [3.0, 5.0], ["cat", "cat"]) == pytest.approx(
        [(s - 3) / math.sqrt(8 / 3) for s in (3.0, 5.0)]
    )
    # The oldest of the cat's five scores is dropped.
    tracker.advantages("r", [7.0, 9.0], ["cat", "cat"])
    assert list(tracker.kept["r"]["cat"]) == [3.0, 5.0, 7.0, 9.0]
    assert tracker.advantages("r", [NAN, 3.0], ["cat", "cat"])[0] == 0.0
    assert list(tracker.kept["r"]["cat"]) == [5.0, 7.0, 9.0, 3.0]
    assert tracker.advantages("other", [1.0, 3.0], ["cat", "cat"]) == pytest.approx([-1.0, 1.0]), "of another reward"


def test_the_tracker_resumes_from_its_state() -> None:
    rollouts: list[tuple[list[float], list[str]]] = [([0.1 * n, 0.3 + n, 0.7], ["cat", "dog", "cat"]) for n in range(4)]
    whole, halves = PromptTracker(3, 2), [PromptTracker(3, 2), PromptTracker(3, 2)]
    expected = [whole.advantages("r", *rollout) for rollout in rollouts]
    got = [halves[0].advantages("r", *rollout) for rollout in rollouts[:2]]
    halves[1].load_state_dict(json.loads(json.dumps(halves[0].state_dict())))
    got += [halves[1].advantages("r", *rollout) for rollout in rollouts[2:]]
    assert got == expected


def combined(scores: dict[str, list[float]], **options: Any) -> list[float]:
    weights = {"big": 1.0, "small": 0.5}
    return combine_advantages(scores, weights, lambda name, own: group_advantages(own, [0] * len(own)), **options)


def test_several_rewards_are_summed_as_advantages_or_as_scores() -> None:
    scores = {"big": [100.0, 300.0, NAN], "small": [0.02, 0.01, 0.03]}
    small = group_advantages(scores["small"], [0, 0, 0])
    expected = [-1.0 + 0.5 * small[0], 1.0 + 0.5 * small[1], 0.5 * small[2]]
    assert combined(scores, combination="advantages") == pytest.approx(expected)
    assert combined(scores, combination="rewards") == pytest.approx([-1.0, 1.0, 0.0])
    assert combined(scores, combination="advantages", limit=0.9) == pytest.approx(
        [max(-0.9, min(a, 0.9)) for a in expected]
    )


def test_diversity_is_the_distance_of_a_prompts_images() -> None:
    generator = torch.Generator().manual_seed(0)
    noise_KCHW = torch.randn(3, 4, 32, 32, generator=generator)
    assert pairwise_distance(noise_KCHW) == pytest.approx(math.sqrt(2), abs=0.05)
    assert pairwise_distance(7 * noise_KCHW) == pytest.approx(pairwise_distance(noise_KCHW))
    assert pairwise_distance(noise_KCHW[:1].expand(3, -1, -1, -1)) == 0.0
    assert math.isnan(pairwise_distance(noise_KCHW[:1]))
    assert mean_diversity([noise_KCHW[:1], noise_KCHW]) == pairwise_distance(noise_KCHW)
