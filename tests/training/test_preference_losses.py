"""The closed forms for pairs: Diffusion-DPO, IPO, label smoothing, MaPO, in the space of the noise."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cumulative_alphas, rescale_to_zero_snr
from modules.objectives.metrics import METRICS
from modules.objectives.preference import (
    PairErrors,
    PreferenceLoss,
    implicit_accuracy,
    implicit_margins,
    mapo_losses,
    mapo_margins,
    noise_errors,
    pair_errors,
    preference_losses,
    preference_metrics,
)

margins = st.floats(-50, 50, width=32)
errors_of_pairs = st.lists(st.floats(0, 4, width=32), min_size=4, max_size=4)

ABAR = cumulative_alphas()
LOSSES: tuple[PreferenceLoss, ...] = ("sigmoid", "ipo")


def errors(chosen: float, rejected: float) -> PairErrors:
    return PairErrors(torch.tensor([chosen]), torch.tensor([rejected]))


def test_the_first_loss_is_ln_2() -> None:
    same = PairErrors(torch.rand(8), torch.rand(8))
    for beta in (1.0, 2000.0, 5000.0):
        margins_B = implicit_margins(same, same, beta=beta)
        assert margins_B.tolist() == [0.0] * 8
        for smoothing in (0.0, 0.1):
            losses = preference_losses(margins_B, loss="sigmoid", label_smoothing=smoothing)
            assert losses.tolist() == pytest.approx([math.log(2)] * 8, abs=1e-6)
        assert implicit_accuracy(margins_B).item() == 0.5


def test_the_loss_is_the_formula_of_the_paper() -> None:
    chosen, rejected, ref_chosen, ref_rejected, beta = 0.5, 0.6, 0.501, 0.598, 2000.0
    margins_B = implicit_margins(errors(chosen, rejected), errors(ref_chosen, ref_rejected), beta=beta)
    inside = -0.5 * beta * ((chosen - ref_chosen) - (rejected - ref_rejected))
    assert margins_B.item() == pytest.approx(inside, rel=1e-3)
    [loss] = preference_losses(margins_B, loss="sigmoid").tolist()
    assert loss == pytest.approx(-math.log(1 / (1 + math.exp(-margins_B.item()))), rel=1e-5)


@given(values=errors_of_pairs, beta=st.floats(1, 5000))
def test_swapping_the_images_flips_the_sign(values: list[float], beta: float) -> None:
    chosen, rejected, ref_chosen, ref_rejected = values
    plain = implicit_margins(errors(chosen, rejected), errors(ref_chosen, ref_rejected), beta=beta)
    swapped = implicit_margins(errors(rejected, chosen), errors(ref_rejected, ref_chosen), beta=beta)
    assert torch.equal(plain, -swapped)
    assert implicit_accuracy(plain).item() + implicit_accuracy(swapped).item() == 1.0


@given(margin=margins, smoothing=st.floats(0, 0.5), loss=st.sampled_from(LOSSES))
def test_label_smoothing_is_the_loss_of_both_orders(margin: float, smoothing: float, loss: PreferenceLoss) -> None:
    there, back = (preference_losses(torch.tensor([m]), loss=loss).item() for m in (margin, -margin))
    smoothed = preference_losses(torch.tensor([margin]), loss=loss, label_smoothing=smoothing).item()
    assert smoothed == pytest.approx((1 - smoothing) * there + smoothing * back, rel=1e-5, abs=1e-6)


@given(one=margins, other=margins)
def test_the_sigmoid_loss_falls_with_the_margin_and_stays_finite(one: float, other: float) -> None:
    low, high = (preference_losses(torch.tensor([m]), loss="sigmoid").item() for m in sorted((one, other)))
    assert 0 <= high <= low < math.inf


def test_ipo_has_its_minimum_at_a_half() -> None:
    margins_B = torch.tensor([0.0, 0.5, 2.0])
    assert preference_losses(margins_B, loss="ipo").tolist() == pytest.approx([0.25, 0.0, 2.25])


@pytest.mark.parametrize("loss", LOSSES)
def test_the_first_gradient_is_proportional_to_beta(loss: PreferenceLoss) -> None:
    gradients = {}
    for beta in (500.0, 2000.0):
        chosen_B, rejected_B = (torch.rand(4, generator=torch.Generator().manual_seed(s)) for s in (1, 2))
        found = PairErrors(chosen_B.requires_grad_(), rejected_B.requires_grad_())
        preference_losses(implicit_margins(found, found, beta=beta), loss=loss).mean().backward()
        assert chosen_B.grad is not None
        assert rejected_B.grad is not None
        assert torch.equal(chosen_B.grad, -rejected_B.grad)
        assert chosen_B.grad.min() > 0  # a step lowers the error of the chosen image
        gradients[beta] = chosen_B.grad
    assert torch.allclose(gradients[2000.0], 4 * gradients[500.0])


def test_the_reference_gets_no_gradient() -> None:
    found, reference = (PairErrors(torch.rand(2).requires_grad_(), torch.rand(2).requires_grad_()) for _ in range(2))
    preference_losses(implicit_margins(found, reference, beta=10.0), loss="sigmoid").sum().backward()
    assert reference.chosen_B.grad is None
    assert found.chosen_B.grad is not None


def test_v_errors_times_abar_are_those_of_the_noise() -> None:
    """The same model, described by its noise and by its v, has the same errors."""
    generator = torch.Generator().manual_seed(3)
    clean, noise, guess = (torch.randn(6, 4, 8, 8, generator=generator) for _ in range(3))
    timesteps = torch.tensor([0, 100, 400, 700, 900, 999])
    by_noise, by_v = DDPMProcess(ABAR), DDPMProcess(ABAR, "v_prediction")
    noisy = by_noise.add_noise(clean, noise, timesteps)
    abar = ABAR[timesteps].view(-1, 1, 1, 1)
    v_of_guess = (guess - (1 - abar).sqrt() * noisy) / abar.sqrt()  # eps = sqrt(abar) v + sqrt(1 - abar) x_t
    in_noise = noise_errors(by_noise, guess, by_noise.target(clean, noise, timesteps), timesteps)
    in_v = noise_errors(by_v, v_of_guess, by_v.target(clean, noise, timesteps), timesteps)
    plain_v = (v_of_guess - by_v.target(clean, noise, timesteps)).square().flatten(1).mean(1)
    assert in_v.tolist() == pytest.approx(in_noise.tolist(), rel=1e-4)
    assert in_v.tolist() == pytest.approx((plain_v * ABAR[timesteps]).tolist(), rel=1e-6)


def test_zero_terminal_snr_contributes_nothing() -> None:
    process = DDPMProcess(rescale_to_zero_snr(ABAR), "v_prediction")
    found = noise_errors(process, torch.ones(2, 4, 2, 2), torch.zeros(2, 4, 2, 2), torch.tensor([999, 500]))
    assert found[0].item() == 0.0
    assert found[1].item() > 0.0


def test_errors_are_float32_whatever_the_output() -> None:
    process, timesteps = DDPMProcess(ABAR), torch.tensor([10, 500])
    found = pair_errors(process, torch.ones(2, 4, 2, 2).bfloat16(), torch.zeros(2, 4, 2, 2), timesteps)
    assert (found.chosen_B.dtype, found.chosen_B.shape, found.rejected_B.shape) == (torch.float32, (1,), (1,))
    with pytest.raises(ValueError, match="even number"):
        pair_errors(process, torch.ones(3, 4, 2, 2), torch.zeros(3, 4, 2, 2), torch.tensor([1, 2, 3]))


# ---- MaPO


@given(chosen=st.floats(0, 3, width=32), rejected=st.floats(0, 3, width=32))
def test_mapo_prefers_the_smaller_error(chosen: float, rejected: float) -> None:
    found = mapo_margins(errors(chosen, rejected), num_timesteps=1000, scale=0.5)
    assert torch.equal(found, -mapo_margins(errors(rejected, chosen), num_timesteps=1000, scale=0.5))
    if abs(chosen - rejected) > 1e-3:
        assert (found.item() > 0) == (chosen < rejected)


@pytest.mark.parametrize(("chosen", "rejected"), [(0.3, 0.5), (1.0, 0.2), (0.004, 0.03), (0.0, 0.0)])
def test_mapo_is_the_formula_of_the_paper(chosen: float, rejected: float) -> None:
    def g(error: float) -> float:
        return 0.5 * error / math.expm1(0.5 * error) if error else 1.0

    found = mapo_margins(errors(chosen, rejected), num_timesteps=1000, scale=0.5)
    assert found.item() == pytest.approx(1000 * (g(chosen) - g(rejected)), rel=1e-4, abs=1e-2)
    loss = mapo_losses(errors(chosen, rejected), found, beta=0.1).item()
    assert loss == pytest.approx(chosen + 0.1 * math.log1p(math.exp(-found.item())), rel=1e-5)


def test_mapo_has_finite_gradients_down_to_no_error() -> None:
    chosen_B = torch.tensor([0.0, 1e-6, 0.019, 0.021, 3.0], requires_grad=True)
    margins_B = mapo_margins(PairErrors(chosen_B, torch.zeros(5)), num_timesteps=1, scale=0.5)
    margins_B.sum().backward()
    assert chosen_B.grad is not None
    assert chosen_B.grad[:4].tolist() == pytest.approx([-0.25] * 4, abs=1e-2)
    assert bool(chosen_B.grad.isfinite().all())


def test_the_metrics_are_those_with_a_record() -> None:
    reported = preference_metrics(torch.tensor([1.0, 0.0, -1.0, 3.0]), PairErrors(torch.ones(4), torch.zeros(4)))
    assert set(reported) <= set(METRICS)
    assert {name: value.item() for name, value in reported.items()} == {
        "implicit_accuracy": 0.625,
        "margin": 0.75,
        "negative_margins": 0.25,
        "chosen_error": 1.0,
        "rejected_error": 0.0,
    }
