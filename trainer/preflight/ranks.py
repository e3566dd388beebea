"""Runs of several processes: what does not go together with them yet. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import method_of, updates_in_backward
from modules.config.schema import Config
from modules.config.words import trained_parts
from modules.system.problem import Problem
from modules.system.ranks import Rank, current_rank


def problems_of_ranks(config: Config, rank: Rank | None = None) -> Iterator[Problem]:
    """Yield the settings that a run of several processes does not support."""
    rank = current_rank() if rank is None else rank
    if rank.is_alone:
        return
    with_several = f"with several processes (this run has {rank.world_size})"
    if not method_of(config).is_shareable:
        yield Problem(
            "training.method",
            f"{method_of(config).label} is not supported yet {with_several}.",
            advice="Train on one device, or choose the method Denoising.",
        )
    if updates_in_backward(config):
        yield Problem(
            "training.optimizer.fused_back_pass",
            f"A fused backward pass is not supported yet {with_several}: the weights would change before the gradients "
            "of the others are there.",
            advice="Switch it off.",
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
