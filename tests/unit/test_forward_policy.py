"""The losses of DiffusionNFT, AWM and DGPO: their published form, and the direction in which they move a prediction."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from modules.diffusion.flow import FlowProcess
from modules.diffusion.process import DDPMProcess, NoiseProcess
from modules.memory.frozen_copy import FrozenCopy
from modules.objectives.forward_fields import OldPolicy, old_policy_decay
from modules.objectives.forward_policy import (
    group_preference_losses,
    group_shares,
    matching_errors,
    matching_log_ratios,
    negative_aware_losses,
    optimality,
    prediction_gaps,
)
from modules.objectives.policy_losses import clipped_surrogate
from modules.system.errors import DarkroomError
from trainer.methods.nft import require_predicted_images

SHAPE = (3, 4, 2, 6)
ALPHAS_CUMPROD = torch.linspace(0.999, 0.005, 1000)


def drawn(number: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(SHAPE, generator=generator) for _ in range(number)]


@pytest.mark.parametrize(
    "process", [FlowProcess(), DDPMProcess(ALPHAS_CUMPROD, "epsilon"), DDPMProcess(ALPHAS_CUMPROD, "v_prediction")]
)
@pytest.mark.parametrize("beta", [1.0, 0.1])
def test_the_loss_is_the_published_one_for_every_prediction_type(process: NoiseProcess, beta: float) -> None:
    """Computed by hand in float64: both policies from the outputs, their images, the errors with their own weights."""
    clean, noise, new, old = drawn(4)
    timesteps = torch.tensor([100, 500, 900])
    noisy = process.add_noise(clean, noise, timesteps)
    r = np.array([0.9, 0.5, 0.1])

    def image(output: np.ndarray, row: int) -> np.ndarray:
        x, t = noisy[row].double().numpy(), int(timesteps[row])
        if process.prediction_type == "flow":
            return x - t / 1000 * output
        signal, sigma = ALPHAS_CUMPROD[t].double().sqrt().item(), (1 - ALPHAS_CUMPROD[t].double()).sqrt().item()
        return (x - sigma * output) / signal if process.prediction_type == "epsilon" else signal * x - sigma * output

    expected = []
    for row in range(3):
        v, v_old, x0 = (tensor[row].double().numpy() for tensor in (new, old, clean))
        errors = []
        for policy in ((1 - beta) * v_old + beta * v, (1 + beta) * v_old - beta * v):
            error = image(policy, row) - x0
            errors.append((error**2).mean() / np.abs(error).mean())
        expected.append((r[row] * errors[0] + (1 - r[row]) * errors[1]) / beta)
    found = negative_aware_losses(
        clean,
        process.to_x0(noisy, new, timesteps),
        process.to_x0(noisy, old, timesteps),
        torch.tensor(r, dtype=torch.float32),
        beta=beta,
    )
    assert found.tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("beta", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("r", [1.0, 0.7, 0.5, 0.3, 0.0])
def test_good_images_draw_the_prediction_to_them_and_bad_ones_push_it_away(seed: int, beta: float, r: float) -> None:
    """At the old model, where a rollout begins; the step there does not depend on beta."""
    clean, old = drawn(2, seed)
    new = old.clone().requires_grad_()
    [gradient] = torch.autograd.grad(
        negative_aware_losses(clean, new, old, torch.full((3,), r), beta=beta).sum(), [new]
    )
    moved = -gradient.flatten(1)
    towards = (clean - old).flatten(1)
    aligned = torch.nn.functional.cosine_similarity(moved, towards)
    if r == 0.5:
        assert gradient.abs().max() < 1e-6
    else:
        torch.testing.assert_close(aligned, torch.full((3,), 1.0 if r > 0.5 else -1.0))
    scale = towards.abs().mean(1, keepdim=True) * towards.shape[1]
    torch.testing.assert_close(moved, 2 * (2 * r - 1) * towards / scale, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_both_branches_are_mirror_images(seed: int) -> None:
    clean, old, new = drawn(3, seed)
    r = torch.tensor([0.9, 0.4, 0.0])
    plain = negative_aware_losses(clean, new, old, r, beta=0.7)
    torch.testing.assert_close(negative_aware_losses(clean, 2 * old - new, old, 1 - r, beta=0.7), plain)
    whole = negative_aware_losses(clean, old + 0.7 * (new - old), old, r, beta=1.0)
    torch.testing.assert_close(plain, whole / 0.7)


def test_an_exact_prediction_has_no_loss_and_no_gradient_that_is_not_finite() -> None:
    [clean] = drawn(1)
    new = clean.clone().requires_grad_()
    losses = negative_aware_losses(clean, new, clean, torch.full((3,), 0.8), beta=1.0)
    losses.sum().backward()
    assert losses.tolist() == [0.0] * 3
    assert new.grad is not None
    assert not new.grad.any()


def test_advantages_become_probabilities() -> None:
    found = optimality(torch.tensor([-9.0, -5.0, -1.0, 0.0, 2.5, 7.0]), limit=5.0)
    assert found.tolist() == pytest.approx([0.0, 0.0, 0.4, 0.5, 0.75, 1.0])


@pytest.mark.parametrize(
    ("kind", "decays"),
    [
        ("copy", {0: 0.0, 1000: 0.0}),
        ("linear", {0: 0.0, 100: 0.1, 499: 0.499, 500: 0.5, 5000: 0.5}),
        ("delayed", {0: 0.0, 75: 0.0, 115: 0.3, 207: 0.99, 300: 0.999}),
    ],
)
def test_the_old_model_follows_ever_more_slowly(kind: OldPolicy, decays: dict[int, float]) -> None:
    assert {step: old_policy_decay(kind, step) for step in decays} == pytest.approx(decays)


def test_a_copy_follows_the_weights_with_a_decay() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    half = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.bfloat16))
    copy = FrozenCopy([weight, half])
    with torch.no_grad():
        weight += 10.0
        half += 1.0
    copy.refresh(0.75)
    assert [c.tolist() for c in copy.copies] == [[3.5, 4.5], [1.25]]
    copy.refresh()
    assert torch.equal(copy.copies[0], weight)


def test_the_ratio_of_awm_compares_denoising_losses() -> None:
    target, old, new = drawn(3)
    new = new.requires_grad_()
    ratios = matching_log_ratios(new, old, target)
    expected = (old - target).square().flatten(1).mean(1) - (new - target).square().flatten(1).mean(1)
    torch.testing.assert_close(ratios, expected)
    assert not matching_log_ratios(old, old, target).any()
    advantages = torch.tensor([1.0, -1.0, 0.0])
    same = old.clone().requires_grad_()
    loss = clipped_surrogate(matching_log_ratios(same, old, target), advantages, clip_range=1e-5).sum()
    [gradient] = torch.autograd.grad(loss, [same])
    towards = (target - old) * 2 / target[0].numel()
    torch.testing.assert_close(-gradient, towards * advantages[:, None, None, None])


def test_a_group_counts_by_how_much_the_model_prefers_it_already() -> None:
    """The losses of the images have the gradient of `-log sigmoid(m) / beta` of the whole group (Luo et al. 2025)."""
    target, new, reference = drawn(3)
    new = new.requires_grad_()
    advantages, beta = torch.tensor([1.2, -0.3, -0.9]), 20.0
    errors, reference_errors = matching_errors(new, target), matching_errors(reference, target)
    margin = -beta * (advantages * (errors - reference_errors)).mean()
    [expected] = torch.autograd.grad(-torch.nn.functional.logsigmoid(margin) / beta, [new], retain_graph=True)
    shares = group_shares(errors, reference_errors, advantages, beta=beta, group_size=3)
    torch.testing.assert_close(shares.sum(), margin.detach())
    margins = shares.sum().expand(3)
    losses = group_preference_losses(errors, errors.detach(), advantages, margins, clip_range=1e-3)
    [gradient] = torch.autograd.grad(losses.mean(), [new])
    torch.testing.assert_close(gradient, expected)
    assert abs(float(margin.detach())) > 0.1


def test_an_image_past_the_clip_range_in_the_direction_of_its_advantage_is_not_trained() -> None:
    errors = torch.tensor([0.9, 0.9, 1.1, 1.1], requires_grad=True)
    old, advantages = torch.ones(4), torch.tensor([1.0, -1.0, 1.0, -1.0])
    losses = group_preference_losses(errors, old, advantages, torch.zeros(4), clip_range=1e-2)
    [gradient] = torch.autograd.grad(losses.sum(), [errors])
    assert gradient.tolist() == [0.0, -0.5, 0.5, 0.0]


def test_the_distance_from_another_model_draws_only_the_trained_one() -> None:
    new, other = (t.requires_grad_() for t in drawn(2))
    gaps = prediction_gaps(new, other)
    torch.testing.assert_close(gaps, (new - other).square().flatten(1).mean(1))
    gaps.sum().backward()
    assert new.grad is not None
    assert other.grad is None


def test_epsilon_with_zero_terminal_snr_has_no_predicted_image() -> None:
    zero_snr = torch.linspace(0.999, 0.0, 10)
    with pytest.raises(DarkroomError, match="zero terminal SNR"):
        require_predicted_images(DDPMProcess(zero_snr, "epsilon"))
    for process in (DDPMProcess(zero_snr, "v_prediction"), DDPMProcess(ALPHAS_CUMPROD, "epsilon"), FlowProcess()):
        require_predicted_images(process)
