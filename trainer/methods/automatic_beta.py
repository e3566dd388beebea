"""Beta from a target margin: it falls as the model moves away from its reference, so that pairs stay worth training.

With a fixed beta the margins of Diffusion-DPO grow with the distance from the reference, until the loss of most pairs
is flat. A beta that keeps the mean margin at a target has no such end, and needs no search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from modules.objectives.preference import beta_for_margin, mean_gap
from trainer.methods.protocol import StepContext

_DECAY = 0.9  # of the average of the gaps, per step


@dataclass(eq=False)
class AutomaticBeta:
    """The beta of a step: with it the recent mean gap between the errors of a pair gives the margin `target`.

    It is at most `highest`, its value before the model has moved. The average is read from the device once per step,
    and is the same in all processes.
    """

    target: float
    highest: float
    _average: float = field(default=0.0, init=False)  # 0: nothing is known yet
    _step: int = field(default=-1, init=False)  # of the gaps below
    _gaps: list[torch.Tensor] = field(default_factory=list, init=False)  # each times its pairs
    _num_pairs: int = field(default=0, init=False)

    @property
    def value(self) -> float:
        """The beta of the current step."""
        return beta_for_margin(self._average, target=self.target, highest=self.highest)

    def add(self, margins_B: torch.Tensor, *, step: int, is_last: bool, counts: bool, context: StepContext) -> None:
        """Add the margins of a micro-batch at the current beta; the last one of a step leads to the next beta."""
        if step != self._step:  # drop the values of an unfinished step
            self._step, self._gaps, self._num_pairs = step, [], 0
        if counts:
            self._gaps.append(mean_gap(margins_B, beta=self.value) * len(margins_B))
            self._num_pairs += len(margins_B)
        if is_last:
            self._finish(context)

    def state_dict(self) -> dict[str, Any]:
        """Return its state, JSON-safe."""
        return {"mean_gap": self._average}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._average = float(state.get("mean_gap", 0.0))

    def _finish(self, context: StepContext) -> None:
        total = float(torch.stack(self._gaps).sum()) if self._gaps else 0.0
        total, num_pairs = context.ranks.sums([total, self._num_pairs])
        gap = total / num_pairs if num_pairs else 0.0
        if gap > 0:  # not before the model has moved, and not without any pair
            self._average = _DECAY * self._average + (1 - _DECAY) * gap if self._average else gap
        self._gaps, self._num_pairs = [], 0
