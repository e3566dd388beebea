"""The exponential moving average of trained weights (Polyak averaging, with a warm-up of the decay)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from modules.system.devices import Device, move


class Ema:
    """A running average of named parameters, in float32, on a device of its own."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        decay: float,
        update_every_steps: int,
        device: Device,
        exact: Callable[[], Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        """`exact()` returns the values to average where the parameters themselves are rounded (master weights)."""
        self._parameters = dict(parameters)
        self._exact = exact or (lambda: self._parameters)
        self._decay = decay
        self._update_every_steps = update_every_steps
        self.device = device
        self.averages = {n: move(p.detach().float().clone(), device) for n, p in self._exact().items()}
        self.num_updates = 0

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the averages after a step (counted from 1), every `update_every_steps` steps.

        The decay is `min(decay, (1 + n) / (10 + n))` at the n-th update, so that early averages forget the start.
        """
        if step % self._update_every_steps:
            return
        decay = min(self._decay, (1 + self.num_updates) / (10 + self.num_updates))
        self.num_updates += 1
        in_place: dict[str, torch.Tensor] = {}
        for name, parameter in self._exact().items():
            current = move(parameter.detach().float(), self.device)
            if current.data_ptr() == parameter.data_ptr():
                in_place[name] = current
            else:  # a copy from another device; only one exists at a time
                self.averages[name].lerp_(current, 1.0 - decay)
        if in_place:  # one call for all: SDXL's LoRA has 1,500 tensors, and each call would launch its own kernels
            get_ema_multi_avg_fn(decay)([self.averages[n] for n in in_place], list(in_place.values()), 0)

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Return a context in which the parameters hold their averages; their own values are restored bit for bit."""
        kept = {name: p.detach().clone() for name, p in self._parameters.items()}
        try:
            self._assign(self.averages)
            yield
        finally:
            self._assign(kept)

    def load(self, averages: Mapping[str, torch.Tensor], num_updates: int) -> None:
        """Load the averages of a backup. Raises KeyError where one is missing."""
        self.averages = {n: move(averages[n].float().clone(), self.device) for n in self._parameters}
        self.num_updates = num_updates

    @torch.no_grad()
    def _assign(self, values: Mapping[str, torch.Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(values[name])
