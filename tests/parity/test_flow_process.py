"""The flow process in every convention: its inverses, and one Euler step of diffusers from noise to the image."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.flux.pipeline_flux import calculate_shift

from modules.diffusion.flow import FlowProcess, flow_process_of
from modules.diffusion.flow_convention import ConstantShift, FlowConvention, Shift, Sign, TimeInput, TokenShift
from modules.system.errors import DarkroomError

SIGMAS = [1.0, 0.999, 0.75, 0.5, 0.1234, 1e-3]
SIGNS: tuple[Sign, ...] = (1, -1)
TIMES: tuple[TimeInput, ...] = ("sigma", "1 - sigma", "1000 sigma")
SHIFTS: tuple[Shift, ...] = (ConstantShift(), ConstantShift(3.0), TokenShift())
CONVENTIONS = [
    FlowConvention(target, output, time, shift)
    for target, output, time, shift in itertools.product(SIGNS, SIGNS, TIMES, SHIFTS)
]

pytestmark = pytest.mark.usefixtures("one_thread")


def latents(num: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    clean, noise = (torch.randn(num, *shape, generator=generator) for _ in range(2))
    return clean, noise


def true_output(
    convention: FlowConvention, time_B: torch.Tensor, noisy: torch.Tensor, clean: torch.Tensor
) -> torch.Tensor:
    """The output of a perfect model of a convention, which knows the image and reads its time."""
    sigma_B = {"sigma": time_B, "1 - sigma": 1 - time_B, "1000 sigma": time_B / 1000}[convention.time_input]
    velocity = (noisy - clean) / sigma_B.view(-1, *[1] * (noisy.dim() - 1))  # eps - x_0, from x_t
    return convention.target_sign * convention.output_sign * velocity


@pytest.mark.parametrize("convention", CONVENTIONS, ids=str)
def test_one_euler_step_with_the_true_velocity_returns_the_image(convention: FlowConvention) -> None:
    process = FlowProcess(convention)
    clean, noise = latents(len(SIGMAS), 4, 6, 5)
    timesteps_B = process.timesteps(torch.tensor(SIGMAS))
    noisy = process.add_noise(clean, noise, timesteps_B)
    # In float64, so that the errors are those of the process and not of the model.
    time_B = process.time_input(timesteps_B).double()
    exact = (1 - process.sigma(timesteps_B).double().view(-1, 1, 1, 1)) * clean.double()
    exact += process.sigma(timesteps_B).double().view(-1, 1, 1, 1) * noise.double()
    output = true_output(convention, time_B, exact, clean.double()).float()
    velocity = process.velocity(output)
    tolerance: dict[str, float] = {"rtol": 1e-6, "atol": 1e-6}
    if convention.time_input != "1 - sigma":  # whose float32 has an error of 6e-8, of a sigma of 1e-3
        torch.testing.assert_close(velocity, process.target(clean, noise, timesteps_B), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(process.to_x0(noisy, velocity, timesteps_B), clean, **tolerance)
    for row, sigma in enumerate(SIGMAS):
        scheduler = FlowMatchEulerDiscreteScheduler()
        scheduler.set_timesteps(sigmas=[sigma])
        step = scheduler.step(velocity[row : row + 1], scheduler.timesteps[0], noisy[row : row + 1])
        torch.testing.assert_close(step.prev_sample, clean[row : row + 1], **tolerance)


def test_noise_is_added_as_by_diffusers_at_the_same_timesteps() -> None:
    process, scheduler = FlowProcess(), FlowMatchEulerDiscreteScheduler()
    timesteps_B = scheduler.timesteps[[0, 250, 999]]
    clean, noise = latents(3, 2, 4, 4)
    theirs = scheduler.scale_noise(clean, timesteps_B, noise)
    torch.testing.assert_close(process.add_noise(clean, noise, timesteps_B), theirs, rtol=1e-6, atol=1e-6)
    assert torch.equal(process.sigma(timesteps_B), scheduler.sigmas[[0, 250, 999]])
    assert torch.equal(process.timesteps(process.sigma(timesteps_B)), timesteps_B)


def test_whole_timesteps_and_latents_of_any_shape_serve() -> None:
    """Validation has whole timesteps; a VAE for images and videos has latents with a dimension for frames."""
    process = FlowProcess()
    clean, noise = latents(2, 3, 1, 4, 4)
    whole, real = torch.tensor([125, 875]), torch.tensor([125.0, 875.0])
    noisy = process.add_noise(clean, noise, whole)
    assert noisy.shape == clean.shape
    assert torch.equal(noisy, process.add_noise(clean, noise, real))
    torch.testing.assert_close(process.to_x0(noisy, noise - clean, whole), clean, rtol=1e-5, atol=1e-5)


def test_the_ratio_and_the_noise_errors_follow_from_sigma() -> None:
    process = FlowProcess()
    timesteps_B = torch.tensor([0.0, 250.0, 500.0, 1000.0])
    assert process.snr(timesteps_B).tolist() == [math.inf, 9.0, 1.0, 0.0]
    clean, noise = latents(4, 2, 3, 3)
    noisy = process.add_noise(clean, noise, timesteps_B)
    wrong = noise - clean + 0.3
    errors_B = (wrong - (noise - clean)).square().flatten(1).mean(1)
    predicted = noisy + (1 - process.sigma(timesteps_B).view(-1, 1, 1, 1)) * wrong
    of_noise_B = (predicted - noise).square().flatten(1).mean(1)
    torch.testing.assert_close(process.noise_errors(errors_B, timesteps_B), of_noise_B, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("tokens", [256, 1024, 4096, 6400])
def test_the_token_shift_is_that_of_diffusers(tokens: int) -> None:
    assert TokenShift().mu(tokens) == pytest.approx(calculate_shift(tokens), rel=1e-12)
    assert TokenShift().factor(tokens) == pytest.approx(math.exp(calculate_shift(tokens)))
    assert TokenShift(kind="linear").factor(tokens) == pytest.approx(calculate_shift(tokens))


def test_an_image_of_1024_px_has_4096_tokens() -> None:
    """For every family of factor 8 and patch 2, also for one whose latents are patched already."""
    convention = FlowConvention(shift=TokenShift())
    assert convention.shift_at(1024, 1024) == TokenShift().factor(4096)
    assert convention.shift_at(1024, 1024) == pytest.approx(3.158, abs=1e-3)
    assert convention.shift_at(1344, 768) == TokenShift().factor(84 * 48)


@pytest.mark.parametrize(
    ("config", "shift"),
    [
        ({}, TokenShift(max_shift=0.9)),
        ({"shift": 3.0}, ConstantShift(3.0)),
        ({"shift": 3.0, "use_dynamic_shifting": True}, TokenShift(max_shift=0.9)),
        (
            {"use_dynamic_shifting": True, "base_shift": 0.25, "max_image_seq_len": 8192, "time_shift_type": "linear"},
            TokenShift(256, 8192, 0.25, 0.9, "linear"),
        ),
    ],
    ids=str,
)
def test_the_shift_is_read_from_the_scheduler_of_the_checkpoint(config: dict[str, Any], shift: Shift) -> None:
    process = flow_process_of(config, FlowConvention(shift=TokenShift(max_shift=0.9)))
    assert process.convention.shift == shift
    assert process.spec.flow == process.convention


@pytest.mark.parametrize(
    "config",
    [
        {"invert_sigmas": True},
        {"use_dynamic_shifting": True, "base_image_seq_len": 4096},
        {"use_dynamic_shifting": True, "time_shift_type": "cubic"},
    ],
    ids=str,
)
def test_a_scheduler_that_cannot_be_used_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(DarkroomError):
        flow_process_of(config, FlowConvention())
