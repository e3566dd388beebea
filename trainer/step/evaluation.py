"""Evaluating the model without side effects: EMA weights if there are any, no dropout, no gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from modules.memory.sharding import ShardedModule
from modules.optim.ema import Ema
from modules.optim.param_groups import TrainGroup, exact_parameters, named_parameters, optimizer_parameters


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The weights and modes that samples, validation and saves use."""

    trained_modules: Sequence[nn.Module]
    ema: Ema | None
    optimizer: torch.optim.Optimizer
    groups: Sequence[TrainGroup]
    sharded: Sequence[ShardedModule] = ()
    """The modules whose weights the processes of the run shard: all must evaluate together."""

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Evaluate within this context; weights and modes are restored afterwards, also after an exception."""
        weights = self.ema.swapped_in() if self.ema else optimizer_in_evaluation(self.optimizer, self.groups)
        with contextlib.ExitStack() as stack:
            stack.enter_context(weights)
            stack.enter_context(torch.no_grad())
            stack.enter_context(evaluation_mode(self.trained_modules))
            for module in self.sharded:
                stack.enter_context(module.whole())
            yield

    def variants(self, *, also_without_ema: bool) -> list[Evaluation]:
        """Return the evaluations to sample with: this one and, if wanted and different, the plain weights."""
        return [self, replace(self, ema=None)] if also_without_ema and self.ema is not None else [self]

    @contextlib.contextmanager
    def values(self) -> Iterator[Mapping[str, torch.Tensor]]:
        """Yield the exact weights to save, by full parameter name: the EMA weights if there are any."""
        if self.ema is not None:
            yield self.ema.averages
            return
        with optimizer_in_evaluation(self.optimizer, self.groups):
            yield exact_parameters(self.groups)


@contextlib.contextmanager
def evaluation_mode(trained_modules: Sequence[nn.Module]) -> Iterator[None]:
    """Put modules into evaluation mode within this context; the mode of each submodule is restored."""
    modes = {m: m.training for trained in trained_modules for m in trained.modules()}
    try:
        for module in trained_modules:
            module.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def has_evaluation_mode(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer trains other weights than those to evaluate, and can move between them."""
    return callable(getattr(optimizer, "eval", None)) and callable(getattr(optimizer, "train", None))


@contextlib.contextmanager
def optimizer_in_evaluation(optimizer: torch.optim.Optimizer, groups: Sequence[TrainGroup]) -> Iterator[None]:
    """Put an optimizer into evaluation mode within this context, if it has one; others are unchanged.

    Schedule-free optimizers (Defazio et al. 2024, "The Road Less Scheduled", algorithm 1) train at one point and are
    evaluated at another; `eval()` and `train()` move the weights between them. Moving back rounds, so the exact bits of
    each weight are restored. Master weights that exist only during a step are filled for it.
    """
    if not has_evaluation_mode(optimizer):
        yield
        return
    master_weights = [m for g in groups for m in g.master_weights.values()]
    touched = {id(p): p for p in (*named_parameters(groups).values(), *optimizer_parameters(groups).values())}
    exact = [(p, p.detach().clone()) for p in touched.values() if p.numel()]
    for master_weight in master_weights:
        master_weight.fill()
    try:
        optimizer.eval()  # type: ignore[attr-defined]
        for master_weight in master_weights:
            master_weight.round_value()
            master_weight.release()
        yield
    finally:
        for master_weight in master_weights:
            master_weight.fill()
        optimizer.train()  # type: ignore[attr-defined]
        for master_weight in master_weights:
            master_weight.release()
        with torch.no_grad():
            for parameter, value in exact:
                parameter.copy_(value)
