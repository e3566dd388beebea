"""The original model of a run, for its predictions: without adapters, or with a frozen copy of the trained weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from modules.adapters.protocol import Adapter
from modules.memory.frozen_copy import FrozenCopy
from trainer.step.evaluation import evaluation_mode
from trainer.step.precision import Precision


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
        for context in (evaluation_mode(trained_modules), torch.no_grad(), precision.autocast(keeps_casts=False)):
            stack.enter_context(context)
        for adapter in adapters:
            stack.enter_context(adapter.disabled())
        for original in originals:
            stack.enter_context(original.swapped_in())
        yield
