"""The runs that can record their steps as CUDA graphs (`trainer/step/graphs.py`), and the reasons why others cannot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from modules.config.schema import Config
from modules.config.usage import method_of, updates_in_backward
from modules.system import hardware
from modules.system.allocator import allocates_by_driver
from modules.system.problem import Problem
from modules.system.ranks import current_rank
from trainer import phases
from trainer.launch import num_processes

PASSED_ON: Collection[str] = ()
"""The GPUs on which a run with graphs gave the results of one without. None yet: until
there is one, the automatic choice is off.
"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason why steps cannot be recorded, to follow "because", and whether a config has it."""

    because: str
    holds: Callable[[Config], bool]


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "the method's loss cannot be computed without the host",
        lambda c: not method_of(c).is_recordable or c.training.trains == "vae",
    ),
    Refusal("the learned loss weighting is computed on the host", lambda c: c.training.loss.learned_weighting),
    Refusal(
        "captions are encoded in each step (text encoders or embeddings are trained, or the text cache is off)",
        lambda c: _encodes_captions(c),
    ),
    Refusal("images are encoded in each step: the latent cache is off", lambda c: not c.data.latent_cache),
    Refusal("layers or activations are offloaded", lambda c: _offloads(c)),
    Refusal("dropout draws its random numbers while the model runs", lambda c: _has_dropout(c)),
    Refusal("weights are updated in the backward pass", updates_in_backward),
    Refusal("the precision float16 was not tried with graphs", lambda c: c.training.precision == "float16"),
    Refusal("compiled blocks and graphs were not tried together", lambda c: c.model.compile == "on"),
    Refusal("debug checks read every result", lambda c: c.general.debug_checks),
    # It ignores the pool in which graphs share memory (pytorch/pytorch pull request 192464).
    Refusal(
        "the allocator cudaMallocAsync is chosen, in which graphs share no memory", lambda _: allocates_by_driver()
    ),
)


def why_not_recorded(config: Config, device_type: str, world_size: int) -> str:
    """Return why the steps of a run cannot be recorded, to follow "because"; empty if they can."""
    if device_type != "cuda":
        return "only GPUs have graphs"
    if world_size > 1:
        return "several processes sum their gradients in the backward pass"
    return next((refusal.because for refusal in REFUSALS if refusal.holds(config)), "")


def records_steps(config: Config, device_type: str, world_size: int) -> bool:
    """Return whether a run records its steps."""
    is_wanted = config.training.cuda_graphs == "on" or (config.training.cuda_graphs == "auto" and bool(PASSED_ON))
    return is_wanted and not why_not_recorded(config, device_type, world_size)


def problems_of_graphs(config: Config) -> Iterator[Problem]:
    """Yield a warning if steps are to be recorded and cannot be."""
    if config.training.cuda_graphs != "on":
        return
    world_size = current_rank().world_size
    if world_size == 1 and config.multi_gpu.enabled:
        world_size = num_processes(config)
    device_type = hardware.here().kind_of(config.general.train_device) or "cuda"  # if it is not certain
    if because := why_not_recorded(config, device_type, world_size):
        yield Problem(
            "training.cuda_graphs",
            f"The steps of this run are not recorded as CUDA graphs, because {because}.",
            "warning",
            "Switch off CUDA graphs, or change what prevents them.",
        )


def _encodes_captions(config: Config) -> bool:
    facts = phases.phase_facts(config)
    return facts.encodes_some_captions or not facts.has_text_cache


def _offloads(config: Config) -> bool:
    parts = (config.part(name) for name in config.family.names_of("denoiser"))
    return any(p.offload_activations or p.offload_fraction > 0 for p in parts)


def _has_dropout(config: Config) -> bool:
    settings = config.adapter.model_dump() if config.training.trains == "adapter" else {}
    return any(isinstance(value, float) and value > 0 for name, value in settings.items() if "dropout" in name)
