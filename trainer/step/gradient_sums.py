"""Summing the gradients of the processes of a run: while the last backward pass of a step continues, or after it.

Gradients are summed in buckets, as torch's DistributedDataParallel does (Li et al. 2020, "PyTorch Distributed",
section 3.2): the sum of a bucket starts as soon as all of its gradients are there and the sums of earlier buckets
have started, so that all processes start them in the same order.

DistributedDataParallel itself does not fit. It replaces the forward pass of the module that it wraps, while only the
family calls the forward pass of a part: several times in a step, and with weights that are frozen mid-run.
Steps that are skipped, sums in another precision and parameters that only some processes use must give the results of a
single process, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from modules.optim.updates.master_weights import round_stochastically
from modules.optim.updates.slicing import SUMMED_BYTES
from modules.system.seeds import derive_seed
from trainer.ranks import LostProcessError, Ranks

Precision = Literal["float32", "float32_stochastic", "weights", "weights_stochastic"]


@dataclass(frozen=True, slots=True)
class Reduction:
    """The way in which gradients are summed.

    `starts_early`: during the last backward pass of a step; otherwise after it. `is_async`: the backward pass continues
    meanwhile, with at most `most_bytes` in transfer, or a single bucket. `precision`: 16-bit gradients are summed in
    float32, and the sum is rounded to nearest or at random (from `run_seed`), or they are summed in their own dtype.
    """

    starts_early: bool = True
    is_async: bool = True
    most_bytes: int = 100 * 2**20
    precision: Precision = "float32"
    run_seed: int = 0


@dataclass(eq=False)
class _Bucket:
    """Parameters whose gradients are summed together, and their sum until it is in the gradients."""

    parameters: Sequence[nn.Parameter]
    number: int
    num_missing: int = 0
    flat: torch.Tensor | None = None
    wait: Callable[[], None] = field(default=lambda: None)


class GradientSums:
    """Replaces the gradients of parameters by their sums over all processes, once per step."""

    def __init__(self, parameters: Sequence[nn.Parameter], ranks: Ranks, reduction: Reduction) -> None:
        self._parameters = parameters
        self._ranks = ranks
        self._reduction = reduction
        self._layout: list[list[nn.Parameter]] = []  # the parameters of each bucket, while the same ones are trained
        self._laid_out: list[nn.Parameter] = []
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[int, _Bucket] = {}
        self._num_started = 0
        self._step = 0
        self._is_open = False
        self._hooks: list[RemovableHandle] = []

    def open(self, step: int) -> None:
        """Start sums from now on, as gradients become complete: called before the last backward pass of a step."""
        self._begin(step)
        self._is_open = self._reduction.starts_early

    def start_rest(self, step: int) -> None:
        """Start the sums that have not started: called after the last backward pass of a step."""
        self._is_open = False
        if not self._buckets:
            self._begin(step)
        for bucket in self._buckets[self._num_started :]:
            self._start(bucket)

    def finish(self, num_holders: Sequence[float]) -> None:
        """Wait for the sums, of which all must have started, and set the gradients.

        `num_holders` are the numbers of processes that have a gradient, for each parameter that is trained. If any
        process has one, all get it; otherwise none has one afterwards.
        """
        for bucket in self._buckets:
            self._settle(bucket)
        trained = [p for p in self._parameters if p.requires_grad]
        for parameter, number in zip(trained, num_holders, strict=True):
            if not number:
                parameter.grad = None
        self.discard()

    def discard(self) -> None:
        """Wait for the sums and forget them. Sums that a lost process has left open do not matter here."""
        for bucket in self._buckets[: self._num_started]:
            with suppress(LostProcessError):
                bucket.wait()  # also of one that is in the gradients already: it returns at once
        self._buckets, self._bucket_of, self._num_started, self._is_open = [], {}, 0, False

    def _begin(self, step: int) -> None:
        self._step = step
        trained = [p for p in reversed(self._parameters) if p.requires_grad]  # the last ones get their gradient first
        if len(trained) != len(self._laid_out) or any(a is not b for a, b in zip(trained, self._laid_out, strict=True)):
            self._layout, self._laid_out = list(_in_buckets(trained)), trained
            self._watch(trained)
        self._buckets = [_Bucket(some, number, len(some)) for number, some in enumerate(self._layout)]
        self._bucket_of = {id(p): bucket for bucket in self._buckets for p in bucket.parameters}
        self._num_started = 0

    def _watch(self, trained: Sequence[nn.Parameter]) -> None:
        """Watch the gradients of parameters if that starts a sum before the backward pass has ended.

        It does not with a single bucket: that is complete at the end. A call for each weight would only cost time.
        """
        for hook in self._hooks:
            hook.remove()
        is_watched = self._reduction.starts_early and len(self._layout) > 1
        self._hooks = [p.register_post_accumulate_grad_hook(self._on_gradient) for p in trained] if is_watched else []

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        bucket = self._bucket_of.get(id(parameter))
        if not self._is_open or bucket is None:
            return
        bucket.num_missing -= 1
        while self._num_started < len(self._buckets) and not self._buckets[self._num_started].num_missing:
            self._start(self._buckets[self._num_started])

    def _start(self, bucket: _Bucket) -> None:
        kind = bucket.parameters[0]
        in_float32 = kind.dtype.itemsize == 2 and self._reduction.precision.startswith("float32")
        dtype, sizes = torch.float32 if in_float32 else kind.dtype, [p.numel() for p in bucket.parameters]
        self._make_room(sum(sizes) * dtype.itemsize)
        with torch.no_grad():
            bucket.flat = torch.zeros(sum(sizes), dtype=dtype, device=kind.device)
            pairs = zip(bucket.flat.split(sizes), bucket.parameters, strict=True)
            filled = [(part.view(p.shape), p.grad) for part, p in pairs if p.grad is not None]
            if filled:
                torch._foreach_copy_([part for part, _ in filled], [gradient for _, gradient in filled])
        bucket.wait = _once(self._ranks.start_sum(bucket.flat))
        self._num_started += 1
        if not self._reduction.is_async:
            self._settle(bucket)

    def _make_room(self, num_bytes: int) -> None:
        """Wait for the oldest sums and free them until another one may be in transfer."""
        waiting = [b for b in self._buckets[: self._num_started] if b.flat is not None]
        in_transfer = sum(b.flat.nbytes for b in waiting if b.flat is not None)
        for bucket in waiting:
            if in_transfer + num_bytes <= self._reduction.most_bytes or bucket.flat is None:
                return
            in_transfer -= bucket.flat.nbytes
            self._settle(bucket)

    def _settle(self, bucket: _Bucket) -> None:
        """Wait for a sum, write it to the gradients, and free it.

        All parameters of the bucket have a gradient then, also an embedding that is only in others' batches.
        """
        if bucket.flat is None:
            return
        bucket.wait()
        with torch.no_grad():
            flat = self._round_sum(bucket.flat, bucket.parameters[0].dtype, bucket.number)
            for parameter in (p for p in bucket.parameters if p.grad is None):
                parameter.grad = torch.empty_like(parameter)
            parts = flat.split([p.numel() for p in bucket.parameters])
            gradients = [p.grad for p in bucket.parameters if p.grad is not None]
            torch._foreach_copy_(gradients, [part.view(g.shape) for part, g in zip(parts, gradients, strict=True)])
        bucket.flat = None

    def _round_sum(self, flat: torch.Tensor, dtype: torch.dtype, number: int) -> torch.Tensor:
        """Return the sum of the step's bucket for gradients of a dtype. All processes round it in the same way."""
        at_random = self._reduction.precision == "float32_stochastic"
        if at_random and flat.dtype == torch.float32 and dtype == torch.bfloat16:
            seed = derive_seed(self._reduction.run_seed, f"gradient sum {number}", self._step)
            return round_stochastically(flat, torch.Generator(flat.device).manual_seed(seed))
        return flat


def _once(wait: Callable[[], None]) -> Callable[[], None]:
    """Return a function that waits at its first call only."""
    waiting = [wait]

    def wait_once() -> None:
        if waiting:
            waiting.pop()()

    return wait_once


def _in_buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield parameters of one device and dtype at a time, not more than a bucket's bytes except for a single one."""
    by_kind: dict[tuple[torch.device, torch.dtype], list[nn.Parameter]] = {}
    for tensor in parameters:
        by_kind.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    for kind in by_kind.values():
        bucket: list[nn.Parameter] = []
        num_bytes = 0
        for tensor in kind:
            if bucket and num_bytes + tensor.nbytes > SUMMED_BYTES:
                yield bucket
                bucket, num_bytes = [], 0
            bucket.append(tensor)
            num_bytes += tensor.nbytes
        yield bucket
