"""Looking at the model as it is, without a trace: averaged weights where they are kept, no dropout, no gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from modules.optim.ema import Ema
from modules.optim.param_groups import TrainGroup, kept_parameters, moved_parameters, named_parameters


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The weights and modes that samples, validation and saves use."""

    trained_modules: Sequence[nn.Module]
    ema: Ema | None
    optimizer: torch.optim.Optimizer
    groups: Sequence[TrainGroup]

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Be in evaluation for a while; weights and modes come back as they were, also after an exception."""
        weights = self.ema.swapped_in() if self.ema else optimizer_in_evaluation(self.optimizer, self.groups)
        with weights, torch.no_grad(), evaluation_mode(self.trained_modules):
            yield

    @contextlib.contextmanager
    def values(self) -> Iterator[Mapping[str, torch.Tensor]]:
        """Yield the weights to save, exact, by full parameter name: the averages where they are kept."""
        if self.ema is not None:
            yield self.ema.averages
            return
        with optimizer_in_evaluation(self.optimizer, self.groups):
            yield kept_parameters(self.groups)


@contextlib.contextmanager
def evaluation_mode(trained_modules: Sequence[nn.Module]) -> Iterator[None]:
    """Put modules into evaluation mode for a while; each submodule's own mode comes back."""
    modes = {m: m.training for trained in trained_modules for m in trained.modules()}
    try:
        for module in trained_modules:
            module.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextlib.contextmanager
def optimizer_in_evaluation(optimizer: torch.optim.Optimizer, groups: Sequence[TrainGroup]) -> Iterator[None]:
    """Put an optimizer that has an evaluation mode into it for a while; others are left alone.

    Schedule-free optimizers (Defazio et al. 2024, "The Road Less Scheduled", algorithm 1) learn at one point and are
    judged at another, between which `eval()` and `train()` move the weights. The way back rounds, so each weight is
    given its own bits again.
    """
    to_evaluation, to_training = getattr(optimizer, "eval", None), getattr(optimizer, "train", None)
    if not callable(to_evaluation) or not callable(to_training):
        yield
        return
    touched = {id(p): p for p in (*named_parameters(groups).values(), *moved_parameters(groups).values())}
    own = [(p, p.detach().clone()) for p in touched.values()]
    try:
        to_evaluation()
        for master_weight in (s for g in groups for s in g.master_weights.values() if s.rounding == "master"):
            master_weight.give_value()
        yield
    finally:
        to_training()
        with torch.no_grad():
            for parameter, value in own:
                parameter.copy_(value)
