"""The mode of a model while it samples images for a training method."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from modules.system.global_rng import seeded_global_rng
from modules.system.seeds import derive_seed
from trainer.step.evaluation import evaluation_mode
from trainer.step.precision import Precision


@contextlib.contextmanager
def rollout_mode(
    trained_modules: Sequence[nn.Module], precision: Precision, *, run_seed: int, step: int
) -> Iterator[None]:
    """Sample with the weights in training within this context: no gradient, no dropout, the run's precision.

    The global generators get their own seed, for rewards that use them. Everything is restored afterwards.
    """
    seed = derive_seed(run_seed, "rollout mode", step)
    rng = seeded_global_rng(seed, precision.device)
    with evaluation_mode(trained_modules), torch.no_grad(), rng, precision.autocast():
        yield
