"""Runs of several processes: settings that they do not support yet, and whether they shard the denoiser."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.config.usage import copies_originals, method_of, settings_of_method, trained_parts, updates_in_backward
from modules.optim.registry import optimizer_spec
from modules.system import hardware
from modules.system.problem import Problem, count
from modules.system.ranks import Rank, current_rank
from trainer.launch import num_processes


def problems_of_ranks(config: Config, rank: Rank | None = None) -> Iterator[Problem]:
    """Yield the settings that a run of several processes does not support."""
    world_size = (current_rank() if rank is None else rank).world_size
    if world_size == 1 and config.multi_gpu.enabled:
        yield from _of_devices(config)
        world_size = num_processes(config)
    if world_size == 1:
        return
    with_several = f"with several processes (this run has {world_size})"
    if not method_of(config).is_shareable(settings_of_method(config)):
        yield Problem(
            "training.method",
            f"{method_of(config).label} is not supported yet {with_several}.",
            advice="Train on one device, or choose the method Denoising.",
        )
    if updates_in_backward(config):
        yield Problem(
            "training.optimizer.fused_back_pass",
            f"A fused backward pass is not supported yet {with_several}: the weights would change before the other "
            "gradients are summed.",
            advice="Switch it off.",
        )
    reason = why_not_sharded(config)
    if config.multi_gpu.sharding == "on" and reason:
        yield Problem(
            "multi_gpu.sharding",
            f"The weights cannot be sharded. {reason}",
            advice='Choose "Where supported": each GPU then has all weights.',
        )
    if config.training.loss.learned_weighting:
        yield Problem(
            "training.loss.learned_weighting",
            f"Learned loss weights are not supported yet {with_several}.",
            advice="Switch them off.",
        )
    for part in trained_parts(config):
        if config.part(part.name).offload_fraction > 0:
            yield Problem(
                f"parts.{part.name}.offload_fraction",
                f"Offloading layers is not supported yet {with_several}.",
                advice="Set it to 0, or train on one device.",
            )


def _of_devices(config: Config) -> Iterator[Problem]:
    """Yield the problems of the GPUs of a run that starts a process for each, and how they share a step."""
    named = [part.strip() for part in config.multi_gpu.device_indexes.split(",") if part.strip()]
    if not all(part.isdecimal() for part in named) or len(set(named)) < len(named):
        yield Problem(
            "multi_gpu.device_indexes",
            f"{config.multi_gpu.device_indexes!r} are not different GPUs.",
            advice="Separate their indexes by commas, as in 0, 1, or leave the field empty for all of them.",
        )
        return
    here, device = hardware.here(), config.general.train_device
    capabilities = here.capabilities
    missing = [part for part in named if capabilities is not None and int(part) >= len(capabilities)]
    if missing and here.kind_of(device) == "cuda":
        yield Problem(
            "multi_gpu.device_indexes",
            f"This machine has no GPU {', '.join(missing)}: it has {count(len(capabilities or ()), here.gpu_name)}.",
            advice="Indexes count from 0.",
        )
    if not named and here.why_unknown:
        yield Problem(
            "multi_gpu.device_indexes",
            f"How many GPUs this machine has is not known: {here.why_unknown}.",
            advice="Enter the indexes of the GPUs, as in 0, 1, or switch multi-GPU training off.",
        )
        return
    world_size = num_processes(config)
    if world_size == 1:
        yield Problem(
            "multi_gpu.enabled",
            "Multi-GPU training is on, but only one device was found. The run uses it alone.",
            "warning",
            advice="Name the indexes of the GPUs, or switch it off.",
        )
        return
    step = config.training.batch_size * config.training.accumulation_steps
    if step < world_size:
        yield Problem(
            "training.batch_size",
            f"A step has {count(step, 'image')} for {world_size} devices: some of them have nothing to train.",
            "warning",
            advice="The batch size counts all devices together (in OneTrainer each device alone): raise it.",
        )


def sharded_parts(config: Config, world_size: int) -> tuple[str, ...]:
    """Return the parts whose weights a run shards among its processes; none where each has all of them."""
    if world_size == 1 or config.multi_gpu.sharding == "off" or why_not_sharded(config):
        return ()
    return config.family.names_of("denoiser")


def why_not_sharded(config: Config) -> str:
    """Return why the denoiser of a run of several processes cannot be sharded, as a sentence; empty if it can."""
    training = config.training
    denoisers = config.family.names_of("denoiser")
    trained = {p.name for p in trained_parts(config)}
    if training.trains != "full" or not trained.issuperset(denoisers):
        return "Only the denoiser of a fine-tune can be sharded."
    optimizer = optimizer_spec(training.optimizer)
    if not optimizer.is_elementwise:
        return f"{optimizer.label} needs whole weights."
    if training.precision == "float16":
        return "The precision float16 is not supported."
    if method_of(config).samples_images:
        return "A method that samples images to train on is not supported."
    if copies_originals(config):
        return "A method that also needs the original model is not supported."
    if any(config.part(name).offload_fraction > 0 or config.part(name).offload_activations for name in denoisers):
        return "Offloading is not supported."
    if quantized_parts(config).formats.keys() & set(denoisers):
        return "A quantized denoiser is not supported."
    if config.model.compile == "on":
        return "Compiled blocks are not supported."
    if config.general.debug_checks:
        return "Debug checks are not supported."
    return ""
