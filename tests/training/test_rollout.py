"""The differentiable denoising loop: its images, its gradients against a plain full graph, its memory, how it stops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.adapters.lora_layers import LoraShape, attach_lora
from modules.adapters.protocol import target_layers
from modules.config.sections.evaluation import SamplePrompt
from modules.data.buckets import Size
from modules.data.conditioning import SizeConditioning
from modules.families.protocol import PartMemory
from modules.memory.guard import DeviceGuard
from modules.memory.placement import Placement
from modules.objectives.policy_losses import reward_loss
from modules.rewards.composite import build_rewards
from modules.rewards.protocol import RewardContext
from modules.rewards.settings import Scorer
from modules.sampling.ddim_step import ddim_steps
from modules.sampling.registry import samplers_for
from modules.sampling.rollout import Rollout, RolloutSettings, roll_out, sample_with, steps_of, trainable_steps
from modules.settings.layer_filter import EVERYTHING
from modules.system.devices import CPU, Device
from tests.builders.clip import write_clip_folder
from tests.builders.matrix import matrix
from tests.builders.old_autocast import old_autocast_cache
from tests.builders.pipelines import assert_same_image, load_tiny, sample_in_diffusers, stock_pipeline

SIZE = Size(64, 48)
SEEDS = (11, 12)
PROMPTS = ["a red disc", "a cat"]
SETTINGS = RolloutSettings(num_steps=3, guidance=3.0)
MODELS = ["tiny_sd", "tiny_sd2", "tiny_sdxl", "tiny_sdxl_v"]

Parameters = dict[str, torch.nn.Parameter]
Gradients = dict[str, torch.Tensor]


@functools.cache
def learning(folder: Path, kind: str) -> tuple[Any, Parameters]:
    """A family with a trainable denoiser; loaded once, as no test changes a weight."""
    family = load_tiny(folder)
    for part in family.parts.values():
        part.module.requires_grad_(False)
    unet = family.parts["unet"]
    if kind == "full":
        unet.module.requires_grad_(True)
        return family, dict(unet.module.named_parameters())
    targets = target_layers(unet.module, "denoiser", layers=EVERYTHING, reaches=unet.reaches)
    adapter = attach_lora("unet", unet.module, targets, LoraShape(2, 2.0, 0.0, torch.float32), seed=3)
    generator = torch.Generator().manual_seed(1)
    for key, parameter in adapter.parameters().items():
        if "lora_B" in key:  # zero at first, which would hide A's gradient
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    return family, adapter.parameters()


def sampled(
    family: Any,
    *,
    gradient_steps: int = 0,
    settings: RolloutSettings = SETTINGS,
    on_step: Callable[[], None] = lambda: None,
    seeds: tuple[int, ...] = SEEDS,
    prompts: list[str] = PROMPTS,
    mode: str = "whole",
    **options: Any,
) -> Rollout:
    family.set_memory({"unet": PartMemory(mode)}, train_device=CPU, temp_device=Device("cpu:1"))
    with torch.no_grad():
        conditioning, empty = family.encode_prompts(prompts), family.encode_prompts([""])
    return roll_out(
        family,
        conditioning,
        empty,
        seeds=seeds,
        size=SIZE,
        settings=settings,
        gradient_steps=gradient_steps,
        device=CPU,
        temp_device=Device("cpu:1"),
        on_step=on_step,
        **options,
    )


def full_graph(family: Any, *, gradient_steps: int) -> torch.Tensor:
    """The same images with nothing checkpointed and no `no_grad`; the prefix detached."""
    family.set_memory({}, train_device=CPU, temp_device=CPU)
    with torch.no_grad():
        # Encoded as the rollout's are: the last bits of a text's states depend on the batch it is encoded in.
        prompts, empty = family.encode_prompts(PROMPTS), family.encode_prompts([""])
        both = family.with_size_conditioning(
            family.join([empty.select([0, 0]), prompts], empty), [SizeConditioning.whole(SIZE)] * 4
        )
    latents = torch.stack([torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(s)) for s in SEEDS])
    for index, step in enumerate(ddim_steps(family.process, family.scheduler_config(), num_steps=SETTINGS.num_steps)):
        if index == SETTINGS.num_steps - gradient_steps:
            latents = latents.detach()
        output = family.predict(torch.cat([latents, latents]), torch.tensor([step.timestep] * 4), both)
        without, with_prompt = output.chunk(2)
        latents = step.mean(without + SETTINGS.guidance * (with_prompt - without), latents)
    images = [family.vae.decode(one[None] / family.vae.config.scaling_factor).sample for one in latents]
    return (torch.cat(images) / 2 + 0.5).clamp(0, 1)


def gradients_of(images: torch.Tensor, parameters: Parameters) -> Gradients:
    for parameter in parameters.values():
        parameter.grad = None
    (images - 0.3).square().mean().backward()
    assert all(p.grad is not None for p in parameters.values())
    return {n: p.grad for n, p in parameters.items() if p.grad is not None}


@pytest.mark.parametrize("model", ["tiny_sd", "tiny_sdxl", "tiny_sdxl_v"])
def test_its_images_are_those_of_diffusers_pipelines(request: pytest.FixtureRequest, model: str) -> None:
    folder = request.getfixturevalue(model)
    prompt = SamplePrompt(
        prompt="a red disc", width_px=64, height_px=48, seed=11, steps=5, guidance=4.0, sampler="ddim"
    )
    rollout = sampled(load_tiny(folder), settings=RolloutSettings(5, 4.0), seeds=(11,), prompts=["a red disc"])
    ours = (rollout.images_B3PP[0].permute(1, 2, 0) * 255).round().numpy().astype(int)
    assert_same_image(ours, sample_in_diffusers(stock_pipeline(folder), prompt))


@pytest.mark.parametrize("gradient_steps", [0, 1])
def test_steps_without_gradients_do_not_block_later_gradients_under_autocast(
    tiny_sd: Path, monkeypatch: pytest.MonkeyPatch, gradient_steps: int
) -> None:
    """Within one autocast region, torch 2.9 and 2.10 left 196 of 286 parameters without a gradient."""
    family, parameters = learning(tiny_sd, "full")
    with old_autocast_cache(monkeypatch), torch.autocast("cpu", dtype=torch.bfloat16):
        result = sampled(family, gradient_steps=gradient_steps).images_B3PP
        if not gradient_steps:  # as for a method that trains on a finished rollout
            with torch.no_grad():
                conditioning = family.with_size_conditioning(
                    family.encode_prompts(PROMPTS), [SizeConditioning.whole(SIZE)] * 2
                )
            result = family.predict(torch.ones(2, 4, 6, 8), torch.tensor([500, 500]), conditioning)
    for parameter in parameters.values():
        parameter.grad = None
    result.float().square().mean().backward()
    assert [name for name, parameter in parameters.items() if parameter.grad is None] == []


@pytest.mark.daily(1)
@pytest.mark.parametrize(("model", "kind", "gradient_steps"), matrix(MODELS, ["lora", "full"], [1, 2, 3]))
def test_gradients_are_those_of_a_full_graph(
    request: pytest.FixtureRequest, model: str, kind: str, gradient_steps: int
) -> None:
    """Bit for bit."""
    family, parameters = learning(request.getfixturevalue(model), kind)
    rollout = sampled(family, gradient_steps=gradient_steps)
    ours = gradients_of(rollout.images_B3PP, parameters)
    images = full_graph(family, gradient_steps=gradient_steps)
    theirs = gradients_of(images, parameters)
    assert torch.equal(rollout.images_B3PP, images)
    assert max(float(g.abs().max()) for g in theirs.values()) > 0
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


@pytest.mark.daily(4)
@pytest.mark.parametrize(("kind", "mode"), matrix(["lora", "full"], ["whole", "block"]))
def test_checkpointing_changes_no_bit(any_model: Path, kind: str, mode: str) -> None:
    family, parameters = learning(any_model, kind)
    plain = gradients_of(sampled(family, gradient_steps=2, mode="off").images_B3PP, parameters)
    saved = gradients_of(sampled(family, gradient_steps=2, mode=mode).images_B3PP, parameters)
    assert all(torch.equal(plain[name], saved[name]) for name in plain)


def test_more_backprop_steps_are_more_gradient(tiny_sd: Path) -> None:
    family, parameters = learning(tiny_sd, "lora")
    few, many = (gradients_of(sampled(family, gradient_steps=k).images_B3PP, parameters) for k in (1, 3))
    assert not any(torch.equal(few[n], many[n]) for n in few)


@pytest.mark.parametrize("mode", ["whole", "off"])
def test_memory_does_not_grow_with_the_backprop_steps(tiny_sd: Path, mode: str) -> None:
    """Counts the tensors that autograd saves; without checkpointing their number grows with every step."""
    family, _ = learning(tiny_sd, "lora")
    kept = {}
    for gradient_steps in (1, 3):
        sizes: list[int] = []

        def pack(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel() * tensor.element_size())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            rollout = sampled(family, gradient_steps=gradient_steps, mode=mode, stored_states=(3,))
        assert rollout.images_B3PP.requires_grad
        kept[gradient_steps] = sum(sizes)
    doubled_latents = 2 * rollout.states_BCHW[3].nbytes
    grown = kept[3] - kept[1]
    if mode == "whole":
        assert grown <= 2 * (doubled_latents + 4 * 8)  # the inputs of each step: latents, and four timesteps
        assert kept[1] < 2 * rollout.images_B3PP.nbytes  # of the VAE's inside nothing
    else:
        assert grown > 100 * doubled_latents


def test_without_gradient_steps_there_is_no_graph(tiny_sd: Path) -> None:
    family, _ = learning(tiny_sd, "full")
    rollout = sampled(family)
    assert not rollout.images_B3PP.requires_grad
    for gradient_steps in (1, 3):
        other = sampled(family, gradient_steps=gradient_steps)
        assert torch.equal(other.images_B3PP.detach(), rollout.images_B3PP)


def test_images_follow_from_their_own_seeds(any_model: Path) -> None:
    family, _ = learning(any_model, "lora")
    settings = RolloutSettings(3, 3.0, eta=0.8)
    both = sampled(family, settings=settings).images_B3PP
    assert torch.equal(both, sampled(family, settings=settings).images_B3PP)
    alone = [sampled(family, settings=settings, seeds=(s,), prompts=[p]) for s, p in zip(SEEDS, PROMPTS, strict=True)]
    torch.testing.assert_close(both, torch.cat([r.images_B3PP for r in alone]), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(both, sampled(family, settings=settings, seeds=(12, 11)).images_B3PP, atol=1e-3)


def test_images_are_of_the_size_and_range(tiny_sd: Path) -> None:
    images = sampled(learning(tiny_sd, "lora")[0]).images_B3PP
    assert images.shape == (2, 3, SIZE.height_px, SIZE.width_px)
    assert images.dtype == torch.float32
    assert 0 <= float(images.min()) < float(images.max()) <= 1


@pytest.mark.parametrize("model", ["tiny_sd", "tiny_sdxl_v"])
def test_stored_states_give_the_log_probabilities_again(request: pytest.FixtureRequest, model: str) -> None:
    """The basis of policy methods: with unchanged weights, the ratio of the policies is exactly 1."""
    family, _ = learning(request.getfixturevalue(model), "lora")
    rollout = sampled(family, settings=RolloutSettings(4, 1.0, eta=1.0), stored_states=range(5))
    assert [state.shape for state in rollout.states_BCHW.values()] == [(2, 4, 6, 8)] * 5
    assert {state.dtype for state in rollout.states_BCHW.values()} == {torch.float32}
    assert rollout.log_probs_BN.dtype == torch.float32
    assert rollout.log_probs_BN.shape == (2, 4)
    steps = ddim_steps(family.process, family.scheduler_config(), num_steps=4, eta=1.0)
    with torch.no_grad():
        conditioning = family.with_size_conditioning(family.encode_prompts(PROMPTS), [SizeConditioning.whole(SIZE)] * 2)
        for index, step in enumerate(steps):
            before, after = rollout.states_BCHW[index], rollout.states_BCHW[index + 1]
            output = family.predict(before, torch.tensor([step.timestep] * 2), conditioning)
            again = step.log_prob(after, step.mean(output, before))
            assert torch.equal(again, rollout.log_probs_BN[:, index])
            for row in range(2):  # computed in another batch, the ratio is 1 but for rounding
                output = family.predict(before[[row]], torch.tensor([step.timestep]), conditioning.select([row]))
                alone = step.log_prob(after[[row]], step.mean(output, before[[row]]))
                torch.testing.assert_close(alone, again[[row]], rtol=0.0, atol=1e-6)


def test_the_stored_states_are_the_requested_ones(tiny_sd: Path) -> None:
    family, _ = learning(tiny_sd, "lora")
    none, final, all_of_them = (sampled(family, gradient_steps=1, stored_states=s) for s in ((), (3,), range(4)))
    assert none.states_BCHW == {}
    assert final.states_BCHW.keys() == {3}
    assert torch.equal(final.states_BCHW[3], all_of_them.states_BCHW[3])
    assert not any(state.requires_grad for state in all_of_them.states_BCHW.values())
    first = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(SEEDS[0]))
    assert torch.equal(all_of_them.states_BCHW[0][0], first)
    assert float(none.log_probs_BN.abs().max()) == 0.0  # deterministic: nothing to be more or less likely
    assert final.seeds == SEEDS


def test_a_window_of_stochastic_steps_is_deterministic_outside(tiny_sd: Path) -> None:
    """MixGRPO: only the window's steps have a density, and fresh noise; the steps before it are those of the ODE."""
    family, _ = learning(tiny_sd, "lora")
    windowed = RolloutSettings(5, 3.0, eta=1.0, stochastic_steps=frozenset({1, 2}))
    steps = steps_of(family, windowed, SIZE)
    assert [step.sigma > 0 for step in steps] == [False, True, True, False, False]
    assert trainable_steps(steps) == (1, 2)
    rollout = sampled(family, settings=windowed, stored_states=range(6))
    ode = sampled(family, settings=RolloutSettings(5, 3.0), stored_states=range(6))
    assert torch.equal(rollout.states_BCHW[1], ode.states_BCHW[1])
    assert not torch.equal(rollout.states_BCHW[2], ode.states_BCHW[2])
    assert [bool(column.any()) for column in rollout.log_probs_BN.T] == [False, True, True, False, False]
    after_window = RolloutSettings(5, 3.0, eta=1.0, stochastic_steps=frozenset({4}))
    assert trainable_steps(steps_of(family, after_window, SIZE)) == ()


@pytest.mark.parametrize("model", ["tiny_sd", "tiny_sdxl_v"])
def test_the_last_step_is_never_trained(request: pytest.FixtureRequest, model: str) -> None:
    family, _ = learning(request.getfixturevalue(model), "lora")
    assert trainable_steps(steps_of(family, RolloutSettings(4, eta=1.0), SIZE)) == (0, 1, 2)
    assert trainable_steps(steps_of(family, RolloutSettings(4), SIZE)) == ()


def test_the_first_noise_can_be_shared_within_a_group(tiny_sd: Path) -> None:
    family, _ = learning(tiny_sd, "lora")
    options: dict[str, Any] = {"prompts": ["a cat"] * 2, "stored_states": (0, 3)}
    stochastic = RolloutSettings(3, 3.0, eta=1.0)
    shared = sampled(family, settings=stochastic, noise_seeds=(5, 5), **options).states_BCHW
    assert torch.equal(shared[0][0], shared[0][1])
    assert not torch.allclose(shared[3][0], shared[3][1], atol=1e-3), "the noise of the steps is shared, too"
    own = sampled(family, settings=stochastic, noise_seeds=(5, 6), **options).states_BCHW
    assert torch.equal(own[0][0], shared[0][0])
    assert not torch.equal(own[0][1], shared[0][1])


@pytest.mark.daily(7)
@pytest.mark.parametrize("sampler", samplers_for(["epsilon"]))
def test_any_sampler_gives_the_image_that_it_gives_elsewhere(tiny_sd: Path, sampler: str) -> None:
    """For methods without log-probabilities; each image follows from its own seed, also where steps add noise."""
    family, _ = learning(tiny_sd, "lora")
    family.set_memory({}, train_device=CPU, temp_device=CPU)
    with torch.no_grad():
        texts = family.encode_prompts([*PROMPTS, ""])

    def with_seeds(seeds: tuple[int, ...], rows: list[int]) -> Rollout:
        return sample_with(
            family,
            texts.select(rows),
            texts.select([2]),
            sampler=sampler,
            num_steps=4,
            guidance=3.0,
            seeds=seeds,
            size=SIZE,
            device=CPU,
            temp_device=Device("cpu:1"),
            on_step=lambda: None,
        )

    both = with_seeds(SEEDS, [0, 1])
    assert both.images_B3PP.shape == (2, 3, SIZE.height_px, SIZE.width_px)
    assert both.states_BCHW.keys() == {4}
    assert both.log_probs_BN.shape == (2, 0)
    alone = with_seeds(SEEDS[1:], [1])
    torch.testing.assert_close(both.images_B3PP[1:], alone.images_B3PP, rtol=1e-3, atol=1e-4)
    if sampler == "ddim":
        torch.testing.assert_close(
            both.images_B3PP, sampled(family, settings=RolloutSettings(4, 3.0)).images_B3PP, rtol=1e-4, atol=1e-5
        )


class StoppedError(Exception):
    """The exception that ends a rollout."""


@pytest.mark.parametrize("last_call", [1, 2, 3, 4])
def test_it_can_be_stopped_before_each_step_and_before_the_decoding(tiny_sd: Path, last_call: int) -> None:
    family, _ = learning(tiny_sd, "lora")
    calls, seen = 0, 0

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == last_call:
            raise StoppedError

    hook = family.denoiser.register_forward_hook(count)
    with pytest.raises(StoppedError):
        sampled(family, gradient_steps=2, on_step=check)
    hook.remove()
    assert seen == last_call - 1


def test_inside_autocast_only_the_denoiser_is_in_16_bits(tiny_sd: Path) -> None:
    family, parameters = learning(tiny_sd, "lora")
    seen: dict[str, set[bool]] = {"unet": set(), "vae": set()}

    def note(name: str) -> Callable[..., None]:
        return lambda *_: seen[name].add(torch.is_autocast_enabled("cpu"))

    hooks = [
        family.denoiser.register_forward_pre_hook(note("unet")),
        family.vae.decoder.register_forward_pre_hook(note("vae")),
    ]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rollout = sampled(family, gradient_steps=2)
    gradients = gradients_of(rollout.images_B3PP, parameters)  # computes both again
    for hook in hooks:
        hook.remove()
    assert seen == {"unet": {True}, "vae": {False}}
    assert rollout.images_B3PP.dtype == torch.float32
    assert all(torch.isfinite(g).all() for g in gradients.values())


@pytest.mark.parametrize("gradient_steps", [-1, 4])
def test_more_gradient_than_steps_is_refused(tiny_sd: Path, gradient_steps: int) -> None:
    with pytest.raises(ValueError, match="the 3 denoising steps"):
        sampled(learning(tiny_sd, "lora")[0], gradient_steps=gradient_steps)


def test_guidance_needs_the_empty_prompt(tiny_sd: Path) -> None:
    family, _ = learning(tiny_sd, "lora")
    with torch.no_grad():
        conditioning = family.encode_prompts(PROMPTS)
    options: dict[str, Any] = {
        "seeds": SEEDS, "size": SIZE, "gradient_steps": 0, "device": CPU, "temp_device": CPU, "on_step": lambda: None,
    }  # fmt: skip
    with pytest.raises(ValueError, match="empty prompt"):
        roll_out(family, conditioning, None, settings=SETTINGS, **options)
    unguided = roll_out(family, conditioning, None, settings=RolloutSettings(3), **options)
    assert not torch.allclose(unguided.images_B3PP, sampled(family).images_B3PP, atol=1e-3)


def test_nothing_of_it_is_on_another_device(any_model: Path, tmp_path: Path) -> None:
    """Under the guard, with a training device that is not the one torch makes tensors on by itself."""
    train, guard = Device("cpu:1"), DeviceGuard()
    family = load_tiny(any_model)
    clip = write_clip_folder(tmp_path / "clip")
    with guard:
        placement = Placement(
            {n: p.module for n, p in family.parts.items()},
            train_device=train,
            temp_device=CPU,
            needed_in=lambda phase: frozenset(family.parts),
            guard=guard,
        )
        placement.enter("train")
        family.set_memory({"unet": PartMemory("whole")}, train_device=train, temp_device=CPU)
        family.denoiser.requires_grad_(True)
        context = RewardContext(train, CPU, offline=True)
        reward = build_rewards([Scorer(kind="clip_score", file=str(clip)), Scorer(kind="colour_target")], context)
        with torch.no_grad():
            texts = family.encode_prompts([*PROMPTS, ""]).to(train)
        rollout = roll_out(
            family,
            texts.select([0, 1]),
            texts.select([2]),
            seeds=SEEDS,
            size=SIZE,
            settings=RolloutSettings(3, 3.0, eta=0.5),
            gradient_steps=2,
            device=train,
            temp_device=CPU,
            on_step=lambda: None,
            stored_states=range(4),
        )
        total = reward(rollout.images_B3PP, PROMPTS).total_B
        reward_loss(total, loss="mean", target=0.0, weight=1.0).backward()
        placement.close()
    for tensor in (rollout.images_B3PP, total, family.denoiser.conv_in.weight.grad):
        assert guard.tag_of(tensor) == train.name
    for tensor in (*rollout.states_BCHW.values(), rollout.log_probs_BN):
        assert guard.tag_of(tensor) == CPU.name, "stored on the training device"
