"""Modes of a model in which a training method predicts without gradients: as a reference, and for rollouts.

A reference is the original model (without adapters, or with a frozen copy of the trained weights), or a later copy. It
must be left before the backward pass, which would find other weights than the forward pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import torch
from torch import nn

from modules.adapters.protocol import Adapter
from modules.memory.frozen_copy import FrozenCopy
from modules.system.devices import seeded_global_rng
from modules.system.seeds import derive_seed
from trainer.step.evaluation import evaluation_mode
from trainer.step.precision import Precision

_open: ContextVar[tuple[contextlib.ExitStack, ...]] = ContextVar("open references", default=())


class ReferenceOpenError(RuntimeError):
    """A method left the reference model active: the backward pass would train nothing, or the wrong weights."""


@contextlib.contextmanager
def prior_mode(
    adapters: Sequence[Adapter],
    originals: Sequence[FrozenCopy],
    trained_modules: Sequence[nn.Module],
    precision: Precision,
) -> Iterator[None]:
    """Predict with the original model within this context: no gradient, no dropout, the run's precision.

    Autocast's cache of cast weights is not used: it may hold casts of the trained weights. Everything is restored
    afterwards, also after an exception.
    """
    with contextlib.ExitStack() as stack:
        for context in (evaluation_mode(trained_modules), torch.no_grad(), precision.of_steps(keeps_casts=False)):
            stack.enter_context(context)
        for adapter in adapters:
            stack.enter_context(adapter.disabled())
        for original in originals:
            stack.enter_context(original.swapped_in())
        stack.callback(_open.set, _open.get())
        _open.set((*_open.get(), stack))
        yield


@contextlib.contextmanager
def check_references_left() -> Iterator[None]:
    """Check that what runs in this context leaves every reference; after an exception they are left without a check.

    Entered inside of the run's autocast, which must end after the autocast of a reference.
    """
    try:
        yield
    except BaseException:
        _leave()
        raise
    require_no_reference()


def require_no_reference() -> None:
    """Raise ReferenceOpenError if a reference is still active; it is left first, so the model is the trained one again.

    With adapters off, a backward pass would give them no gradient without any error; with the reference's weights in
    place it would mix both.
    """
    if _leave():
        raise ReferenceOpenError(
            "The training method left the reference model active: leave `prior()` and `reference()` before the loss is "
            "returned."
        )


def _leave() -> bool:
    """Leave every active reference, so that the model is the trained one again; return whether there was one."""
    left_open = _open.get()
    for stack in reversed(left_open):
        stack.close()
    return bool(left_open)


@contextlib.contextmanager
def rollout_mode(
    trained_modules: Sequence[nn.Module], precision: Precision, *, run_seed: int, step: int
) -> Iterator[None]:
    """Sample with the weights in training within this context: no gradient, no dropout, the run's precision.

    The global generators are seeded, for rewards that use them. Everything is restored afterwards.
    """
    seed = derive_seed(run_seed, "rollout mode", step)
    rng = seeded_global_rng(seed, precision.device)
    with evaluation_mode(trained_modules), torch.no_grad(), rng, precision.of_steps():
        yield
