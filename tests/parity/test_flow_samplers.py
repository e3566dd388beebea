"""Samplers of flow models against diffusers' schedulers, set up as its pipelines set them up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FlowMatchLCMScheduler
from diffusers.pipelines.flux.pipeline_flux import calculate_shift

from modules.data.buckets import Size
from modules.diffusion.flow import FlowProcess, flow_process_of
from modules.diffusion.flow_convention import FlowConvention
from modules.families.protocol import ModelFamily
from modules.sampling.denoising_loop import initial_noise, run_denoising_loop, scheduler_for
from modules.sampling.registry import SAMPLERS, samplers_for
from modules.system.devices import CPU
from modules.system.errors import DarkroomError

SIZE = Size(1344, 768)
DYNAMIC = {"use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15}
CONFIGS: list[dict[str, Any]] = [
    {},
    {"shift": 3.0},
    DYNAMIC,
    {**DYNAMIC, "max_image_seq_len": 8192, "max_shift": 0.9, "shift_terminal": 0.02},
    {**DYNAMIC, "time_shift_type": "linear"},
]
OWN_GRIDS = [{"shift": 3.0, f"use_{name}_sigmas": True} for name in ("beta", "karras", "exponential")]
NOISY = frozenset({"lcm"})  # they draw new noise in each step

pytestmark = pytest.mark.usefixtures("one_thread")


def toy_velocity(noisy_BCHW: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
    """A velocity that bends the path, so that each step and each time counts."""
    return torch.sin(1.7 * noisy_BCHW) + noisy_BCHW * (timestep / 1000 - 0.3)


def family_of(config: dict[str, Any], convention: FlowConvention | None = None) -> ModelFamily:
    process = flow_process_of(config, convention or FlowConvention())
    return cast(ModelFamily, SimpleNamespace(process=process, scheduler_config=lambda: config))


def sampled(family: ModelFamily, sampler: str, predict: Any, *, num_steps: int) -> torch.Tensor:
    noise_BCHW, generator = initial_noise((1, 4, 8, 8), seed=5, device=CPU)
    scheduler = scheduler_for(family, sampler, SIZE)
    return run_denoising_loop(
        predict, scheduler, noise_BCHW, num_steps=num_steps, generator=generator, on_step=lambda: None
    )


@pytest.mark.parametrize("config", [*CONFIGS, *OWN_GRIDS], ids=str)
@pytest.mark.parametrize("grid", ["even", "scheduler"])
@pytest.mark.parametrize("num_steps", [2, 28])
@pytest.mark.parametrize("sampler", ["euler", "ddim"])
def test_euler_has_the_sigmas_and_the_path_of_diffusers(
    config: dict[str, Any], grid: Any, num_steps: int, sampler: str
) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler.from_config(config)
    tokens = (SIZE.width_px // 16) * (SIZE.height_px // 16)
    last = config.get("max_image_seq_len", 4096)
    mu = calculate_shift(tokens, max_seq_len=last, max_shift=config.get("max_shift", 1.15))
    options: dict[str, Any] = {"mu": mu} if config.get("use_dynamic_shifting") else {}
    if grid == "even":
        options["sigmas"] = np.linspace(1.0, 1 / num_steps, num_steps)
    scheduler.set_timesteps(num_steps, **options)
    latents_BCHW, _ = initial_noise((1, 4, 8, 8), seed=5, device=CPU)
    for timestep in scheduler.timesteps:
        output_BCHW = toy_velocity(latents_BCHW, timestep)
        latents_BCHW = scheduler.step(output_BCHW, timestep, latents_BCHW).prev_sample

    family = family_of(config, FlowConvention(sample_grid=grid))
    ours = scheduler_for(family, sampler, SIZE)
    ours.set_timesteps(num_steps)
    torch.testing.assert_close(ours.scheduler.sigmas, scheduler.sigmas, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.timesteps, scheduler.timesteps, rtol=1e-6, atol=1e-3)
    found_BCHW = sampled(family, sampler, toy_velocity, num_steps=num_steps)
    torch.testing.assert_close(found_BCHW, latents_BCHW, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("config", [*CONFIGS, *OWN_GRIDS], ids=str)
@pytest.mark.parametrize("sampler", samplers_for(["flow"]))
def test_a_perfect_velocity_ends_at_the_image(sampler: str, config: dict[str, Any]) -> None:
    """For every sampler: the model reads exactly the noise level of its input.

    Also if the model's scheduler has other noise levels, as folders have that were saved with Euler's "beta": the
    multistep schedulers of diffusers would take the levels of a DDPM model then.
    """
    family = family_of(config)
    image_BCHW, _ = initial_noise((1, 4, 8, 8), seed=6, device=CPU)
    noise_BCHW, _ = initial_noise((1, 4, 8, 8), seed=5, device=CPU)
    process = cast(FlowProcess, family.process)
    worst = 0.0

    def perfect(noisy_BCHW: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        nonlocal worst
        expected_BCHW = process.add_noise(image_BCHW, noise_BCHW, timestep[None])
        worst = max(worst, float((noisy_BCHW - expected_BCHW).abs().max()))
        level = timestep / 1000
        return (noisy_BCHW - image_BCHW) / level if sampler in NOISY else noise_BCHW - image_BCHW

    end_BCHW = sampled(family, sampler, perfect, num_steps=12)
    first_level = 0.0 if SAMPLERS[sampler].flow.has_grid else 1e-3  # type: ignore[union-attr]  # 0.999 instead of 1
    if sampler not in NOISY:
        assert worst < 6 * first_level + 1e-4
    assert float((end_BCHW - image_BCHW).abs().max()) < 6 * first_level + 1e-4


@pytest.mark.parametrize("sampler", ["heun", "dpmpp", "unipc"])
def test_samplers_of_the_second_order_need_fewer_steps_than_euler(sampler: str) -> None:
    family = family_of({})
    exact_BCHW = sampled(family, "euler", toy_velocity, num_steps=3000)

    def error(name: str, num_steps: int) -> float:
        return float((sampled(family, name, toy_velocity, num_steps=num_steps) - exact_BCHW).abs().mean())

    assert error(sampler, 40) < error(sampler, 10) / 2
    assert error(sampler, 10) < error("euler", 10) / 3


def of_diffusers(scheduler: Any, config: dict[str, Any], num_steps: int) -> torch.Tensor:
    """The latents of a scheduler that adds noise in each step, set up as pipelines set it up."""
    tokens = (SIZE.width_px // 16) * (SIZE.height_px // 16)
    options = {"mu": calculate_shift(tokens)} if config.get("use_dynamic_shifting") else {}
    scheduler.set_timesteps(num_steps, sigmas=np.linspace(1.0, 1 / num_steps, num_steps), **options)
    latents_BCHW, generator = initial_noise((1, 4, 8, 8), seed=5, device=CPU)
    for timestep in scheduler.timesteps:
        output_BCHW = toy_velocity(latents_BCHW, timestep)
        latents_BCHW = scheduler.step(output_BCHW, timestep, latents_BCHW, generator=generator).prev_sample
    return latents_BCHW


@pytest.mark.parametrize("config", [{"shift": 3.0}, DYNAMIC, {**DYNAMIC, "shift_terminal": 0.02}], ids=str)
def test_samplers_of_few_steps_are_those_of_diffusers(config: dict[str, Any]) -> None:
    """LCM for any model, and Euler for one whose scheduler says that each step adds noise; the same seed repeats it."""
    stochastic = {**config, "stochastic_sampling": True}
    lcm = of_diffusers(FlowMatchLCMScheduler.from_config(config), config, 4)
    euler = of_diffusers(FlowMatchEulerDiscreteScheduler.from_config(stochastic), config, 4)
    found = sampled(family_of(config), "lcm", toy_velocity, num_steps=4)
    torch.testing.assert_close(found, lcm, rtol=1e-6, atol=2e-6)
    assert torch.equal(found, sampled(family_of(config), "lcm", toy_velocity, num_steps=4))
    torch.testing.assert_close(
        sampled(family_of(stochastic), "euler", toy_velocity, num_steps=4), euler, rtol=1e-6, atol=2e-6
    )
    ddim = (sampled(family_of(c), "ddim", toy_velocity, num_steps=4) for c in (stochastic, config))
    assert torch.equal(*ddim)  # deterministic by its definition


@pytest.mark.parametrize("sampler", samplers_for(["flow"]))
def test_every_sampler_ends_at_the_terminal_sigma_of_the_checkpoint(sampler: str) -> None:
    steps = scheduler_for(family_of({**DYNAMIC, "shift_terminal": 0.02}), sampler, SIZE)
    steps.set_timesteps(8)
    assert float(steps.timesteps[-1]) == pytest.approx(20.0, abs=1e-2)
    assert float(steps.timesteps[0]) == pytest.approx(1000.0, abs=1.0)


def test_one_step_is_finite_where_that_of_diffusers_is_not() -> None:
    """The stretch to the terminal sigma divides by zero when the first sigma is the last one."""
    for sampler in samplers_for(["flow"]):
        family = family_of({**DYNAMIC, "shift_terminal": 0.02})
        assert sampled(family, sampler, toy_velocity, num_steps=1).isfinite().all()


def test_many_steps_at_a_high_shift_are_all_made() -> None:
    """The first timesteps of diffusers' multistep schedulers are equal when rounded; none may be left out."""
    for sampler in samplers_for(["flow"]):
        calls: list[float] = []

        def predict(noisy_BCHW: torch.Tensor, timestep: torch.Tensor, calls: list[float] = calls) -> torch.Tensor:
            calls.append(float(timestep))
            return torch.zeros_like(noisy_BCHW)

        sampled(family_of({"shift": 12.0}), sampler, predict, num_steps=100)
        assert len(calls) == (199 if sampler == "heun" else 100)
        assert calls == sorted(calls, reverse=True)
        assert len(set(calls)) == 100


def test_a_sampler_without_a_flow_form_is_refused_by_name() -> None:
    with pytest.raises(DarkroomError, match="Euler a does not support flow matching models") as refused:
        scheduler_for(family_of({}), "euler_a", SIZE)
    assert refused.value.advice == "Choose one of: DDIM, Euler, Heun, DPM++ 2M, UniPC, LCM."


def test_samplers_of_flow_models_alone_are_not_offered_without_a_family() -> None:
    assert "heun" in samplers_for(["flow"])
    assert "heun" not in samplers_for(["epsilon", "v_prediction"])
