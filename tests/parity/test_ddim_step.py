"""Our DDIM step against diffusers' DDIMScheduler and torch's normal distribution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler

from modules.diffusion.process import DDPMProcess
from modules.families.parts.noise_process import process_of
from modules.sampling.ddim_step import DdimStep, ddim_steps
from modules.system.errors import DarkroomError

SCHEDULER = {
    "num_train_timesteps": 1000, "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear",
    "clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1, "prediction_type": "epsilon",
}  # fmt: skip
ZERO_SNR = {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}

SPACINGS = ("leading", "trailing")

pytestmark = pytest.mark.usefixtures("one_thread")


def steps_of(config: dict[str, Any], *, num_steps: int, eta: float = 0.0) -> tuple[DdimStep, ...]:
    return ddim_steps(process_of(config, name="it"), config, num_steps=num_steps, eta=eta)


def random_tensors(seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, 4, 8, 8, generator=generator) for _ in range(3))


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("spacing", ["leading", "trailing", "linspace"])
@pytest.mark.parametrize("changes", [{}, {"set_alpha_to_one": True}, {"steps_offset": 0}], ids=str)
@pytest.mark.parametrize(("num_steps", "eta"), [(20, 0.0), (30, 1.0), (1, 0.0), (7, 0.5)])
def test_steps_are_those_of_diffusers(
    prediction: str, spacing: str, changes: dict[str, Any], num_steps: int, eta: float
) -> None:
    config = {**SCHEDULER, "prediction_type": prediction, "timestep_spacing": spacing, **changes}
    scheduler = DDIMScheduler.from_config(config)
    scheduler.set_timesteps(num_steps)
    steps = steps_of(config, num_steps=num_steps, eta=eta)
    assert [s.timestep for s in steps] == scheduler.timesteps.tolist()
    for step in steps:
        output, latents, noise = random_tensors(step.timestep)
        theirs = scheduler.step(output, step.timestep, latents, eta=eta, variance_noise=noise if eta else None)
        ours = step.next_latents(step.mean(output, latents), noise if eta else None)
        assert_close(ours, theirs.prev_sample)
        assert_close(step.clean_and_noise(output, latents)[0], theirs.pred_original_sample)


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert torch.isfinite(ours).all()
    error = (ours - theirs).abs().max() / theirs.abs().max().clamp(min=1)  # epsilon late in the loop gives x0 of 15
    assert float(error) < 1e-6


@pytest.mark.parametrize("eta", [0.0, 0.7])
def test_steps_at_zero_terminal_snr_are_those_of_diffusers(eta: float) -> None:
    config = {**SCHEDULER, **ZERO_SNR}
    scheduler = DDIMScheduler.from_config(config)
    scheduler.set_timesteps(20)
    steps = steps_of(config, num_steps=20, eta=eta)
    assert [s.timestep for s in steps] == scheduler.timesteps.tolist()
    assert steps[0].abar == 0.0
    for step in steps:
        output, latents, noise = random_tensors(step.timestep)
        theirs = scheduler.step(output, step.timestep, latents, eta=eta, variance_noise=noise if eta else None)
        # diffusers multiplies the rescaled levels up again from betas, which changes them by 1e-6.
        ours = step.next_latents(step.mean(output, latents), noise)
        assert float((ours - theirs.prev_sample).abs().max()) < 2e-5


def test_eta_of_1_at_zero_terminal_snr_is_finite() -> None:
    """diffusers' own step is NaN there: it takes the root of 1 - abar - sigma^2, a rounding error below 0."""
    for num_steps in (1, 5, 20, 37):
        for step in steps_of({**SCHEDULER, **ZERO_SNR}, num_steps=num_steps, eta=1.0):
            output, latents, noise = random_tensors(step.timestep)
            mean = step.mean(output, latents)
            state = step.next_latents(mean, noise)
            for value in (mean, state, step.log_prob(state, mean), step.kl(mean, mean + 0.1)):
                assert torch.isfinite(value).all(), step


def test_zero_terminal_snr_starts_at_noise_for_any_spacing_in_the_config() -> None:
    config = {**SCHEDULER, **ZERO_SNR, "timestep_spacing": "leading"}
    assert steps_of(config, num_steps=10)[0].timestep == 999


@pytest.mark.parametrize(
    "changes",
    [
        *({"prediction_type": p, "timestep_spacing": s} for p in ("epsilon", "v_prediction") for s in SPACINGS),
        ZERO_SNR,
    ],
    ids=str,
)
def test_densities_are_those_of_the_normal_distribution(changes: dict[str, Any]) -> None:
    for step in steps_of({**SCHEDULER, **changes}, num_steps=20, eta=1.0)[:-1]:  # the last one is never trained
        assert step.sigma > 0
        output, latents, noise = random_tensors(step.timestep)
        mean = step.mean(output, latents)
        reference = mean + 0.01 * step.sigma * latents
        state = step.next_latents(mean, noise)
        normal, other = (torch.distributions.Normal(m.double(), step.sigma) for m in (mean, reference))
        expected = normal.log_prob(state.double()).flatten(1).mean(1).float()
        torch.testing.assert_close(step.log_prob(state, mean), expected, rtol=1e-6, atol=1e-6)
        expected = torch.distributions.kl_divergence(normal, other).flatten(1).mean(1).float()
        torch.testing.assert_close(step.kl(mean, reference), expected, rtol=1e-5, atol=1e-9)
        assert step.log_prob(state, mean).dtype == torch.float32


@pytest.mark.parametrize("changes", [{"steps_offset": 0}, {"set_alpha_to_one": True}], ids=str)
def test_a_deterministic_last_step_has_no_log_probability(changes: dict[str, Any]) -> None:
    """Its sigma is 0, where a density would be infinite (leading without offset, or a last level without noise)."""
    *_, before, last = steps_of({**SCHEDULER, **changes}, num_steps=20, eta=1.0)
    assert last.sigma == 0.0
    assert before.sigma > 0.0
    output, latents, noise = random_tensors(0)
    mean = step_mean = last.mean(output, latents)
    assert torch.equal(last.next_latents(mean, noise), step_mean)
    assert last.log_prob(mean, mean).tolist() == [0.0, 0.0]
    assert last.kl(mean, latents).tolist() == [0.0, 0.0]


def test_half_precision_outputs_are_computed_with_in_float32() -> None:
    [step, *_] = steps_of(SCHEDULER, num_steps=20)
    output, latents, _ = random_tensors(1)
    assert step.mean(output.bfloat16(), latents).dtype == torch.float32
    assert torch.equal(step.mean(output.bfloat16(), latents), step.mean(output.bfloat16().float(), latents))


def test_epsilon_at_zero_terminal_snr_is_refused() -> None:
    zero_snr = process_of({**SCHEDULER, **ZERO_SNR}, name="it")
    process = DDPMProcess(zero_snr.alphas_cumprod_T, "epsilon")
    with pytest.raises(DarkroomError, match="divide by zero"):
        ddim_steps(process, SCHEDULER, num_steps=20)


@pytest.mark.parametrize(
    ("changes", "num_steps", "words"),
    [({}, 1001, "has only 1,000 timesteps"), ({"timestep_spacing": "karras"}, 20, "'karras'")],
)
def test_unsupported_steps_and_spacings_are_refused(changes: dict[str, Any], num_steps: int, words: str) -> None:
    with pytest.raises(DarkroomError, match=words):
        steps_of({**SCHEDULER, **changes}, num_steps=num_steps)


def test_a_loop_over_all_timesteps_stays_within_them() -> None:
    """Leading spacing with an offset of 1 would name timestep 1000, which diffusers fails on."""
    timesteps = [s.timestep for s in steps_of(SCHEDULER, num_steps=1000)]
    assert len(timesteps) == 1000
    assert max(timesteps) == 999
