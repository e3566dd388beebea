"""Policy gradients: the clipped surrogate, the trained steps and their weights, and the best and worst of a group."""

from __future__ import annotations

import math

import pytest
import torch

from modules.data.buckets import Size
from modules.objectives.policy_losses import approx_kl, clip_fraction, clipped_surrogate, log_ratios
from modules.sampling.ddim_step import DdimStep
from modules.sampling.step_selection import RandomShare, SlidingWindow
from trainer.methods.policy_batches import PolicyRollout, chunks_to_train, step_weights
from trainer.methods.rollouts import Chunk, PromptBatch, SampledGroup


def surrogate(ratio: float, advantage: float) -> tuple[float, float]:
    """The loss of one sample, and its gradient with respect to the log-probability."""
    log_prob = torch.tensor([math.log(ratio)], requires_grad=True)
    loss = clipped_surrogate(log_ratios(log_prob, torch.zeros(1)), torch.tensor([advantage]), clip_range=0.2)
    [gradient] = torch.autograd.grad(loss.sum(), [log_prob])
    return loss.item(), gradient.item()


@pytest.mark.parametrize("advantage", [-1.5, 0.5])
def test_on_policy_it_is_reinforce(advantage: float) -> None:
    assert surrogate(1.0, advantage) == pytest.approx((-advantage, -advantage))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.1, 2.0, -2.2, -2.2),  # within the range
        (1.3, 2.0, -2.4, 0.0),  # already much more likely: no reason to go on
        (0.7, 2.0, -1.4, -1.4),  # less likely, although it is good: back
        (0.7, -2.0, 1.6, 0.0),
        (1.3, -2.0, 2.6, 2.6),
        (1.3, 0.0, 0.0, 0.0),
    ],
)
def test_it_clips_in_the_direction_of_the_advantage(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    assert surrogate(ratio, advantage) == pytest.approx((loss, gradient), abs=1e-6)


def test_what_it_reports() -> None:
    log_ratios_B = torch.tensor([0.0, 0.1, -0.3, 0.3])
    assert clip_fraction(log_ratios_B, clip_range=0.2).item() == 0.5
    assert approx_kl(log_ratios_B).item() == pytest.approx(0.5 * (0.01 + 0.09 + 0.09) / 4)
    assert clip_fraction(torch.zeros(3), clip_range=1e-4).item() == approx_kl(torch.zeros(3)).item() == 0.0


def test_half_precision_is_computed_with_in_float32() -> None:
    assert log_ratios(torch.ones(1).bfloat16(), torch.ones(1)).dtype == torch.float32
    assert clipped_surrogate(torch.zeros(1).half(), torch.ones(1).half(), clip_range=1e-4).dtype == torch.float32


# ---- the denoising steps


def test_a_random_share_follows_from_the_seed() -> None:
    trainable = (0, 1, 2, 3, 4, 5, 6, 7, 8)
    selected = [RandomShare(0.6).select(trainable, seed) for seed in range(40)]
    assert {len(s) for s in selected} == {5}
    assert all(tuple(sorted(s)) == s for s in selected)
    assert set().union(*selected) == set(trainable)
    assert RandomShare(0.6).select(trainable, 3) == selected[3]
    assert RandomShare(0.01).select((4, 6), 0) in {(4,), (6,)}
    assert RandomShare().select(trainable, 0) == trainable
    assert RandomShare().stochastic_steps(10, 3) is None


def test_the_window_moves_and_begins_again_before_the_last_step() -> None:
    window = SlidingWindow(2, 3)
    first_of = [min(window.stochastic_steps(6, step)) for step in range(15)]
    assert first_of == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 0, 0, 0]
    assert window.stochastic_steps(6, 9) == {3, 4}, "step 5 is the last, and is never trained"
    assert SlidingWindow(5, 1).stochastic_steps(6, 7) == {0, 1, 2, 3, 4}
    assert window.select((3, 4), 8) == (3, 4)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_the_influence_of_a_step_is_its_derivative(prediction: str) -> None:
    for abar, abar_next in ((0.01, 0.05), (0.5, 0.6), (0.98, 0.99)):
        step = DdimStep(1, abar, abar_next, prediction, eta=0.8)  # type: ignore[arg-type]
        output, latents = torch.zeros(1, 1, 1, 1, requires_grad=True), torch.ones(1, 1, 1, 1)
        [slope] = torch.autograd.grad(step.mean(output, latents).sum(), [output])
        assert step.influence == pytest.approx(abs(slope.item()) / step.sigma, rel=1e-5)
    assert math.isfinite(DdimStep(999, 0.0, 0.01, "v_prediction", eta=1.0).influence)
    assert DdimStep(1, 0.5, 0.6, "epsilon").influence == 0.0


def test_equalized_steps_have_the_same_influence() -> None:
    steps = [
        DdimStep(t, abar, nxt, "epsilon", eta=1.0) for t, abar, nxt in ((9, 0.1, 0.3), (5, 0.3, 0.7), (1, 0.7, 0.99))
    ]
    weights = step_weights(steps, equalize=True)
    assert weights.keys() == {0, 1}
    assert sum(weights.values()) == pytest.approx(2)
    assert weights[0] * steps[0].influence == pytest.approx(weights[1] * steps[1].influence)
    assert step_weights(steps, equalize=False) == {0: 1.0, 1: 1.0}


# ---- best of N


def sampled_group(num_samples: int) -> SampledGroup:
    """Two batches, of two prompts and of one; each image's states and log-probabilities are its own number."""
    chunks, number = [], 0
    for micro_batch, captions in enumerate((("a", "b"), ("a",))):
        prompts = PromptBatch(captions, Size(8, 8), micro_batch)
        for sample in range(num_samples):
            own = torch.arange(number, number + len(captions), dtype=torch.float32)
            number += len(captions)
            states = {i: own[:, None, None, None] + i / 10 for i in range(3)}
            rewards = tuple(own.tolist())
            chunks.append(Chunk(prompts, sample, (0,) * len(captions), states, own[:, None].expand(-1, 2), rewards, {}))
    return SampledGroup(0, tuple(chunks))


def test_a_groups_images_are_in_the_order_of_its_chunks() -> None:
    group = sampled_group(3)
    assert group.captions == ["a", "b"] * 3 + ["a"] * 3
    assert group.prompt_numbers == [0, 1, 0, 1, 0, 1, 2, 2, 2]
    assert group.rewards == [float(n) for n in range(9)]
    assert [s.flatten().tolist() for s in group.samples_of_prompts(0)] == [[0, 2, 4], [1, 3, 5], [6, 7, 8]]


def test_best_and_worst_are_chosen_for_each_prompt() -> None:
    # The images of prompt 0 are 0, 2, 4, 6, those of prompt 1 are 1, 3, 5, 7, those of prompt 2 are 8 to 11.
    advantages = [0.1, 2.0, 0.9, 1.0, -0.5, -1.0, 0.0, -2.0, 0.0, 0.0, 5.0, -5.0]
    chunks = chunks_to_train(sampled_group(4), advantages, best_of=3)
    assert [chunk.micro_batch for chunk in chunks] == [0, 0, 0, 1, 1, 1]
    picked = [chunk.states_BCHW[0].flatten().tolist() for chunk in chunks]
    assert picked == [[2, 1], [0, 3], [4, 7], [10], [8], [11]]
    for chunk in chunks:
        assert chunk.states_BCHW.keys() == {0, 1}, "the finished latents are trained on by no step"
        images = chunk.states_BCHW[0].flatten().long().tolist()
        assert chunk.advantages_B.tolist() == pytest.approx([advantages[i] for i in images])
        assert chunk.log_probs_BN[:, 0].tolist() == images
        torch.testing.assert_close(chunk.states_BCHW[1], chunk.states_BCHW[0] + 0.1)
    everything = chunks_to_train(sampled_group(4), advantages, best_of=0)
    assert [v for c in everything for v in c.advantages_B.tolist()] == pytest.approx(advantages)


def test_a_rollout_is_restored_from_its_state() -> None:
    chunks = chunks_to_train(sampled_group(2), [0.5] * 6, best_of=0)
    rollout = PolicyRollout(4, tuple(chunks), {0: (0, 1), 1: (1,)}, {"reward": 0.25})
    again = PolicyRollout.from_state(rollout.to_state())
    assert rollout.num_passes == again.num_passes == 4 * 2 + 2 * 1
    assert not again.is_silent
    assert (again.first_step, again.trained_steps, again.metrics) == (4, {0: (0, 1), 1: (1,)}, {"reward": 0.25})
    for one, other in zip(chunks, again.chunks, strict=True):
        assert one.micro_batch == other.micro_batch
        assert torch.equal(one.advantages_B, other.advantages_B)
        assert torch.equal(one.log_probs_BN, other.log_probs_BN)
        assert all(torch.equal(one.states_BCHW[i], other.states_BCHW[i]) for i in (0, 1))
    assert PolicyRollout(
        0, tuple(chunks_to_train(sampled_group(2), [0.0] * 6, best_of=0)), {0: (0,), 1: (0,)}, {}
    ).is_silent
