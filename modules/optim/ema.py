"""The exponential moving average of trained weights (Polyak averaging, with a warm-up of the decay)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from modules.optim.param_groups import in_layout_of
from modules.optim.updates.slicing import in_slices
from modules.system.devices import Device, are_on, move


class Ema:
    """A running average of named parameters, in float32, on a device that may differ from theirs."""

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
        Averages on another device wait for the training device once for each `SLICE_WEIGHTS` weights.
        """
        if step % self._update_every_steps:
            return
        decay = min(self._decay, (1 + self.num_updates) / (10 + self.num_updates))
        self.num_updates += 1
        for names, current in self._slices():
            # One call for all: SDXL's LoRA has 1,500 tensors, and each call would launch its own kernels.
            get_ema_multi_avg_fn(decay)([self.averages[n] for n in names], current, 0)

    def _slices(self) -> Iterator[tuple[list[str], list[torch.Tensor]]]:
        """Yield the names and the present values, in float32 on the device of the averages, a slice at a time.

        Values that have that dtype and device are not copied, and are all in one slice.
        """
        values = self._exact()
        are_there = zip(values.items(), are_on(values.values(), self.device), strict=True)
        in_place = {n: v for (n, v), is_there in are_there if is_there and v.dtype == torch.float32}
        if in_place:
            yield [*in_place], [*in_place.values()]
        if len(in_place) == len(values):
            return
        for names in in_slices({n: v.numel() for n, v in values.items() if n not in in_place}):
            yield names, self._copy([values[n] for n in names])

    def _copy(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return values in float32 on the device of the averages; the host waits for a GPU once for all of them."""
        if not self.device.is_cpu or values[0].device.type != "cuda":
            return [move(value.float(), self.device) for value in values]
        copies = [torch.empty(v.shape, dtype=v.dtype, pin_memory=True) for v in values]
        for copy, value in zip(copies, values, strict=True):
            copy.copy_(value, non_blocking=True)
        torch.cuda.current_stream(values[0].device).synchronize()
        return [copy.float() for copy in copies]

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
        loaded = {n: in_layout_of(p, averages[n].float()).clone() for n, p in self._parameters.items()}
        self.averages = {n: move(average, self.device) for n, average in loaded.items()}
        self.num_updates = num_updates

    @torch.no_grad()
    def _assign(self, values: Mapping[str, torch.Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(values[name])
