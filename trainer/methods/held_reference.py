"""The reference that a method compares the model with: the original model, or a copy that is refreshed at intervals.

DiffusionNFT also samples with such a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from modules.memory.frozen_copy import FrozenCopy
from trainer.methods.protocol import StepContext

_PREFIX = "reference."


@dataclass(eq=False)
class HeldReference:
    """A copy of the trained weights that is refreshed after `refresh_every` steps; with 0 the original model.

    The first copy is the model as the run begins. `decay(step)` is the share of its former values that it keeps when it
    is refreshed before a step. The copy is part of the method's state, and its tensors are in the order of the trained
    weights.
    """

    refresh_every: int = 0
    decay: Callable[[int], float] = lambda step: 0.0
    _copy: FrozenCopy | None = field(default=None, init=False)
    _step: int = field(default=0, init=False)  # the step that the copy is from
    _restored: list[torch.Tensor] = field(default_factory=list, init=False)

    def prepare(self, context: StepContext) -> None:
        """Make the copy, with the values of a restored state if there is one."""
        if not self.refresh_every:
            return
        self._copy = context.frozen_copy()
        copies = list(self._copy.copies)
        if [t.shape for t in self._restored] == [c.shape for c in copies]:
            with torch.no_grad():
                for copy, value in zip(copies, self._restored, strict=True):
                    copy.copy_(value)
        self._restored = []

    def at_step(self, step: int) -> None:
        """Refresh the copy if it is due before a step, counted from 0; the weights must be those after `step` steps."""
        if self._copy is not None and self._step < step - step % self.refresh_every:
            self._copy.refresh(self.decay(step))
            self._step = step

    def active(self, context: StepContext) -> AbstractContextManager[None]:
        """Return a context in which the model is the reference: no gradient, no dropout, the run's precision."""
        return context.prior() if self._copy is None else context.reference(self._copy)

    def state_dict(self) -> dict[str, Any]:
        """Return the copy's tensors and its step; nothing for the original model."""
        if self._copy is None:
            return {}
        copies = {f"{_PREFIX}{n}": copy.detach() for n, copy in enumerate(self._copy.copies)}
        return {"reference_step": self._step, **copies}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, before `prepare`."""
        self._step = state.get("reference_step", 0)
        count = sum(name.startswith(_PREFIX) for name in state)
        self._restored = [state[f"{_PREFIX}{n}"] for n in range(count)]
