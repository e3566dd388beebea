"""Whether a run of several processes shards the weights of its denoiser among them. Torch-free."""

from __future__ import annotations

from modules.config.embedding_facts import trained_parts
from modules.config.method_facts import copies_originals, method_of
from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.optim.registry import optimizer_spec


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
    if config.model.compile:
        return "Compiled blocks are not supported."
    if config.general.debug_checks:
        return "Debug checks are not supported."
    return ""
