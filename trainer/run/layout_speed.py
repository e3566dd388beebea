"""The time of a run's parts with the weights of their convolutions in the usual order and with the channels innermost.

A model is loaded for it and dropped again, so nothing of the run is touched: not its weights, not its generators, nor
the devices of its parts. It takes no more memory than a training step: gradients are dropped as they arrive.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from modules.config.method_facts import images_per_pass, trains_on_pixels
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.conditioning import Conditioning
from modules.data.inputs import inputs_named
from modules.data.size_conditioning import SizeConditioning
from modules.families.protocol import ModelFamily
from modules.memory.placement import free_cached_memory
from modules.system.devices import Device
from modules.system.global_rng import seeded_global_rng
from trainer import phases
from trainer.preflight.run_budget import Counts
from trainer.ranks import ALONE
from trainer.run.machine import Machine
from trainer.run.model import LoadedModel, load_model
from trainer.step.precision import Precision

Seconds = tuple[float, float]
"""The shortest time in the usual layout, and with the channels innermost."""

_ROUNDS = 3
_ENOUGH_SECONDS = 4.0  # of a pass: then one of each is measured, the first
_LAYOUTS = (torch.contiguous_format, torch.channels_last)


def measured_seconds(
    config: Config,
    machine: Machine,
    parts: Sequence[str],
    *,
    size: Size,
    start_copy: Path | None,
    clock: Callable[[], float],
    check: Callable[[], None],
    on_bytes: Callable[[float, float], None] | None = None,
) -> dict[str, Seconds]:
    """Return the seconds of each part: a forward and a backward pass where it trains, otherwise encoding a batch.

    `check()` is called before each pass; it raises StopRequested if the run is to stop.
    """

    def measure() -> dict[str, Seconds]:  # a function of its own, so that nothing holds the model afterwards
        model = load_model(config, replace(machine, ranks=ALONE), on_bytes, start_copy=start_copy, channels_last=())
        try:
            passes = _passes(config, machine, model, size)
            model.placement.enter(phases.TRAIN)
            _drop_gradients(model)
            return {
                name: _compared(
                    passes[model.family.parts[name].spec.role],
                    partial(_store, model, name),
                    machine.train_device,
                    clock,
                    check,
                )
                for name in parts
            }
        finally:
            model.placement.close()

    try:
        with seeded_global_rng(0, machine.train_device):
            return measure()
    finally:
        gc.collect()  # checkpointed blocks are in reference cycles with their weights
        free_cached_memory(machine.train_device)


def most_frequent(sizes: Counts) -> Size:
    """Return the size of the most images, of several the largest."""
    return max(sizes, key=lambda size: (sizes[size], size.width_px * size.height_px))


def _passes(config: Config, machine: Machine, model: LoadedModel, size: Size) -> dict[str, Callable[[], None]]:
    """Return a pass through the denoiser and one through the VAE, by role."""
    family, device = model.family, machine.train_device.torch
    batch = config.training.batch_size * images_per_pass(config)
    images_B3PP = torch.zeros(batch, 3, size.height_px, size.width_px, device=device)
    if trains_on_pixels(config):
        return {"vae": lambda: _reconstruct(family, images_B3PP)}
    factor, channels = family.spec.latent_factor, family.spec.latent_channels
    latents_BCHW = torch.randn(batch, channels, size.height_px // factor, size.width_px // factor).to(device)
    latents_BCHW.requires_grad_()  # the backward pass goes through all layers, whichever of them train
    inputs = {
        i.name: torch.zeros(batch, i.channels or channels, *latents_BCHW.shape[2:], device=device)
        for i in inputs_named(family.spec.inputs.get(family.variant, ()))
    }
    timesteps_B = torch.full((batch,), family.process.num_timesteps // 2, device=device)
    conditioning = _conditioning(model, machine.precision, size, batch)

    def denoise() -> None:
        with machine.precision.autocast():
            output_BCHW = family.predict(latents_BCHW, timesteps_B, conditioning, inputs)
        output_BCHW.float().square().mean().backward()
        latents_BCHW.grad = None

    def encode() -> None:
        with torch.no_grad():
            family.encode_images(images_B3PP)

    return {"denoiser": denoise, "vae": encode}


def _reconstruct(family: ModelFamily, images_B3PP: torch.Tensor) -> None:
    posterior = family.posterior(images_B3PP)
    decoded_B3PP = family.decode(posterior.means_BCHW * posterior.scale)
    decoded_B3PP.square().mean().backward()


def _conditioning(model: LoadedModel, precision: Precision, size: Size, batch: int) -> Conditioning:
    """Return the conditioning of empty prompts, which is as large as that of any short prompt."""
    family = model.family
    with model.placement.phase(phases.CACHE_CAPTIONS), torch.no_grad(), precision.autocast():
        encoded = family.encode_prompts([""] * batch)
        return family.with_size_conditioning(encoded, [SizeConditioning.whole(size)] * batch)


def _drop_gradients(model: LoadedModel) -> None:
    """Free each gradient as soon as it is there: together those of a fine-tune are as large as its weights."""

    def drop(parameter: torch.Tensor) -> None:
        parameter.grad = None

    for group in model.groups:
        for parameter in group.parameters.values():
            parameter.register_post_accumulate_grad_hook(drop)


def _store(model: LoadedModel, name: str, memory_format: torch.memory_format) -> None:
    """Store the convolutions' weights of a part in a layout, in place; those of its adapter stay as they are."""
    kept = {id(p) for adapter in model.adapters for p in adapter.parameters().values()}

    def stored(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() != 4 or id(tensor) in kept:
            return tensor
        made = tensor.to(memory_format=memory_format)
        return made.pin_memory() if tensor.is_pinned() else made  # an offloaded layer is fetched as before

    model.family.parts[name].module._apply(stored)


def _compared(
    run: Callable[[], None],
    store: Callable[[torch.memory_format], None],
    device: Device,
    clock: Callable[[], float],
    check: Callable[[], None],
) -> Seconds:
    """Return the shortest time in each layout, in turns; a first pass counts only where passes take long."""

    def timed(memory_format: torch.memory_format) -> float:
        check()
        store(memory_format)
        start = clock()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device.torch)
        return clock() - start

    first = [timed(memory_format) for memory_format in _LAYOUTS]
    if max(first) > _ENOUGH_SECONDS:
        return first[0], first[1]
    rounds = [[timed(memory_format) for memory_format in _LAYOUTS] for _ in range(_ROUNDS)]
    usual, innermost = zip(*rounds, strict=True)
    return min(usual), min(innermost)
