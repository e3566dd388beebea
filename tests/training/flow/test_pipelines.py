"""Flow families against their own diffusers pipelines, at toy size: text, samples, and what their convention means.

`test_run.py` has the runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from modules.data.buckets import Size
from modules.diffusion.flow_convention import FlowConvention
from modules.families.parts.attention_processor import set_attention
from modules.families.protocol import ModelFamily, PartMemory
from modules.sampling.denoising_loop import initial_noise, run_denoising_loop, scheduler_for
from modules.sampling.prediction import guided_prediction
from modules.sampling.rollout import Rollout, RolloutSettings, roll_out
from modules.system.devices import CPU, Device
from modules.system.errors import DarkroomError
from tests.builders.flow_models import FlowModel
from tests.builders.pipelines import denoiser_of, noise_of


@pytest.fixture(scope="module")
def size(tiny: FlowModel) -> Size:
    return Size(tiny.side_px, tiny.side_px)


def test_a_batch_of_two_lengths_is_two_batches_of_one(family: ModelFamily) -> None:
    text = family.encode_prompts(["a", "a very much longer prompt of a disc"])
    noisy = noise_of(family, batch=2, seed=1)
    timesteps = torch.tensor([200.0, 800.0])
    with torch.no_grad():
        both = family.predict(noisy, timesteps, text)
        alone = [family.predict(noisy[i : i + 1], timesteps[i : i + 1], text.select([i])) for i in (0, 1)]
    torch.testing.assert_close(both, torch.cat(alone), rtol=1e-5, atol=2e-5)


@torch.no_grad()
def test_a_dropped_caption_is_the_encoded_empty_prompt(family: ModelFamily) -> None:
    empty, encoders = family.encode_prompts([""]), range(len(family.spec.names_of("text_encoder")))
    wanted = family.encode_prompts(["", "b"])
    dropped = family.with_empty_prompts(family.encode_prompts(["a disc", "b"]), [set(encoders), set()], empty)
    noisy, timesteps = noise_of(family, batch=2, seed=1), torch.tensor([200.0, 800.0])
    assert all(tensor.any() for tensor in empty.tensors().values())  # no zeros in its place
    torch.testing.assert_close(
        family.predict(noisy, timesteps, dropped), family.predict(noisy, timesteps, wanted), rtol=1e-5, atol=2e-5
    )


@torch.no_grad()
def test_the_text_is_that_of_diffusers_pipeline(model: Path, tiny: FlowModel, family: ModelFamily) -> None:
    pipe = tiny.pipeline(model, family)
    for prompt in ("a disc", "", "a " * 600):
        ours, theirs = family.encode_prompts([prompt]).tensors(), tiny.text(pipe, prompt)
        assert ours.keys() == theirs.keys(), prompt
        for name, tensor in ours.items():
            place = f"{name} of {prompt[:10]!r}"
            torch.testing.assert_close(
                tensor, theirs[name], rtol=1e-5, atol=1e-5, msg=lambda text, place=place: f"{place}: {text}"
            )


@torch.no_grad()
def test_a_sample_is_that_of_diffusers_pipeline(model: Path, tiny: FlowModel, family: ModelFamily, size: Size) -> None:
    """Every denoising step and the decoded image, wide where the pipeline does not choose the shape, with and without
    guidance.
    """
    if tiny.family not in ("hidream", "wuerstchen"):
        size = Size(3 * size.width_px // 2, size.height_px)
    pipe, prompt = tiny.pipeline(model, family), "a disc"
    rounding = 1e-5 if tiny.is_flow else 1e-4  # the first steps of DDPM divide the prediction by as little as 0.006
    noise, generator = initial_noise((1, *tiny.spec.latents.shape(*size.sides_px)), seed=3, device=CPU)
    text, empty = family.encode_prompts([prompt]), family.encode_prompts([""])
    for guidance in tiny.guidances:
        theirs, image = tiny.sample(pipe, prompt, noise, guidance)
        predict = guided_prediction(family, text, empty, size=size, guidance=guidance)
        latents = run_denoising_loop(
            predict,
            scheduler_for(family, tiny.sampler, size),
            noise,
            num_steps=4,
            generator=generator,
            on_step=lambda: None,
        )
        allowed = rounding * (2 * guidance - 1)  # guidance multiplies the rounding of both predictions
        torch.testing.assert_close(latents, theirs, rtol=1e-5, atol=allowed)
        torch.testing.assert_close(
            (family.decode(latents, prompts=text) / 2 + 0.5).clamp(0, 1), image, rtol=1e-5, atol=allowed
        )


def test_one_euler_step_with_the_true_velocity_returns_the_image(family: ModelFamily, flow: FlowConvention) -> None:
    clean, noise = (noise_of(family, batch=2, seed=seed) for seed in (2, 3))
    timesteps = torch.tensor([300.0, 900.0])
    noisy = family.process.add_noise(clean, noise, timesteps)
    velocity = family.process.target(clean, noise, timesteps)
    sigma = timesteps[:, None, None, None] / 1000.0
    torch.testing.assert_close(noisy + (0.0 - sigma) * velocity, clean, rtol=1e-5, atol=1e-5)


def test_an_image_of_1024_px_has_4096_tokens(flow: FlowConvention, tiny: FlowModel) -> None:
    """Counted once, after the patches of 2 x 2 (OneTrainer counted a quarter for FLUX.2 until August 2026). Deeper
    latents are tokens as they are.
    """
    assert flow.token_px == max(16, tiny.spec.latents.factor)


@torch.no_grad()
def test_attention_implementations_agree(family: ModelFamily) -> None:
    text = family.encode_prompts(["a", "a longer prompt"])
    noisy = noise_of(family, batch=2, seed=1)
    before, model = family.predict(noisy, torch.tensor([200.0, 800.0]), text), family.spec.denoiser.model
    if not model.attention:  # it keeps its own
        with pytest.raises(DarkroomError, match="is not supported for this model"):
            set_attention(denoiser_of(family), model, "sdpa_math", device=CPU, dtype=torch.float32)
        return
    set_attention(denoiser_of(family), model, "sdpa_math", device=CPU, dtype=torch.float32)
    after = family.predict(noisy, torch.tensor([200.0, 800.0]), text)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


# -- training on rewards


def rolled_out(family: ModelFamily, size: Size, *, gradient_steps: int, mode: str) -> Rollout:
    family.set_memory({family.spec.denoiser.name: PartMemory(mode)}, train_device=CPU, temp_device=Device("cpu:1"))
    with torch.no_grad():
        texts = family.encode_prompts(["a disc", ""])
    return roll_out(
        family,
        texts.select([0]),
        texts.select([1]),
        seeds=(11,),
        size=size,
        settings=RolloutSettings(3, 2.0),
        gradient_steps=gradient_steps,
        device=CPU,
        temp_device=Device("cpu:1"),
        on_step=lambda: None,
    )


def in_one_graph(family: ModelFamily, sampler: str, size: Size, *, gradient_steps: int) -> torch.Tensor:
    """The same image, sampled step by step with diffusers' scheduler and nothing checkpointed."""
    family.set_memory({}, train_device=CPU, temp_device=CPU)
    with torch.no_grad():
        texts = family.encode_prompts(["a disc", ""])
    predict = guided_prediction(family, texts.select([0]), texts.select([1]), size=size, guidance=2.0)
    scheduler, latents = scheduler_for(family, sampler, size), noise_of(family, batch=1, seed=11)
    scheduler.set_timesteps(3)
    for index, timestep in enumerate(scheduler.timesteps):
        latents = latents.detach() if index == 3 - gradient_steps else latents
        latents = scheduler.step(predict(latents, timestep), timestep, latents).prev_sample
    return (family.decode(latents, prompts=texts.select([0])) / 2 + 0.5).clamp(0, 1)


@pytest.mark.daily(5)
@pytest.mark.parametrize("mode", ["off", "whole"])
def test_a_rollout_is_a_sample_with_the_gradient_of_its_last_steps(
    family: ModelFamily, tiny: FlowModel, size: Size, mode: str
) -> None:
    denoiser = denoiser_of(family)
    found = []
    for sample in (
        lambda: rolled_out(family, size, gradient_steps=2, mode=mode).images_B3PP,
        lambda: in_one_graph(family, tiny.sampler, size, gradient_steps=2),
    ):
        denoiser.requires_grad_(True)
        denoiser.zero_grad()
        image = sample()
        first = found[0][0] if found else image.detach()
        is_inside = (first > 0.001) & (first < 0.999)  # at 0 and 1 rounding decides whether a gradient passes
        (image - 0.3)[is_inside].square().mean().backward()
        found.append((image.detach(), {n: p.grad for n, p in denoiser.named_parameters() if p.grad is not None}))
    (image, gradients), (wanted, expected) = found
    torch.testing.assert_close(image, wanted, rtol=1e-4, atol=1e-7 if tiny.is_flow else 5e-6)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-7 if tiny.is_flow else 1e-6)
    reaches = family.parts[family.spec.denoiser.name].reaches
    assert all(gradient.any() for name, gradient in found[0][1].items() if reaches(name.rpartition(".")[0]))
