"""Looking at the model as it is, without a trace: averaged weights where they are kept, no dropout, no gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from modules.optim.ema import Ema


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The weights and modes that samples, validation and saves use."""

    trained_modules: Sequence[nn.Module]
    ema: Ema | None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Be in evaluation for a while; weights and modes come back as they were, also after an exception."""
        modes = [m.training for m in self.trained_modules]
        with self.ema.swapped_in() if self.ema else contextlib.nullcontext(), torch.no_grad():
            for module in self.trained_modules:
                module.eval()
            try:
                yield
            finally:
                for module, mode in zip(self.trained_modules, modes, strict=True):
                    module.train(mode)
