"""Summing gradients while the backward pass continues gives what a sum at its end gives."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from modules.system.ranks import Rank
from trainer.ranks import LostProcessError, OneProcess
from trainer.step import gradient_sums
from trainer.step.gradient_sums import GradientSums, Reduction


@dataclass
class Twins(OneProcess):
    """Two processes with the same gradients: a sum doubles a tensor, once it is waited for."""

    rank: Rank = Rank(0, 2)  # noqa: RUF009 - frozen
    started: list[int] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0

    def start_sum(self, tensor: torch.Tensor) -> Callable[[], None]:
        self.started.append(tensor.numel())
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)

        def wait() -> None:
            tensor.mul_(2)
            self.num_open -= 1

        return wait


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).to(dtype)


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_sums, "SUMMED_BYTES", 300)  # a layer


def summed(
    reduction: Reduction, dtype: torch.dtype = torch.float32, *, step: int = 0
) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None], Twins, int]:
    """The gradients of a step of two micro-batches and their sums, and the sums that had started before its end."""
    ranks, layers = Twins(), model(dtype)
    layers[3].requires_grad_(False)
    unused = nn.Parameter(torch.ones(3, dtype=dtype))
    parameters = [*layers.parameters(), unused]
    sums = GradientSums(parameters, ranks, reduction)
    for number in range(2):
        if number == 1:
            sums.open(step)
        layers(torch.full((1, 8), number + 1.0, dtype=dtype)).sum().backward()
        assert number or not ranks.started  # the first one's gradients are not complete
    before = [None if p.grad is None else p.grad.clone() for p in parameters]
    num_early = len(ranks.started)
    sums.start_rest(step)
    sums.finish([2.0 * (p is not unused) for p in parameters if p.requires_grad])
    assert ranks.num_open == 0
    return before, [p.grad for p in parameters], ranks, num_early


def test_the_sums_are_those_at_the_end() -> None:
    for reduction in (Reduction(), Reduction(is_async=False), Reduction(starts_early=False), Reduction(most_bytes=1)):
        before, after, ranks, num_early = summed(reduction)
        for own, total in zip(before, after, strict=True):
            assert (own is None) == (total is None)
            assert own is None or (total is not None and torch.equal(total, 2 * own))
        assert ranks.started == [75, 72, 72]  # the last layers first, in buckets
        # The first bucket contains a parameter without a gradient: all others wait for it.
        assert num_early == 0


def test_sums_start_in_the_backward_pass_as_far_as_the_buffer_goes() -> None:
    cases = {4: Reduction(), 2: Reduction(most_bytes=2 * 4 * 72), 1: Reduction(is_async=False)}
    for most_open, reduction in cases.items():
        ranks, layers = Twins(), model()
        sums = GradientSums(list(layers.parameters()), ranks, reduction)
        sums.open(0)
        layers(torch.ones(1, 8)).sum().backward()
        assert ranks.started == [72] * 4
        assert ranks.most_open == most_open
        sums.discard()
        assert ranks.num_open == 0


@pytest.mark.parametrize("starts_early", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_more_memory_is_held_than_the_buffer_allows(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, starts_early: bool
) -> None:
    """A sum whose transfer has ended used to be kept until the end of the step: all gradients once more."""
    held: list[weakref.ref[torch.Tensor]] = []
    most_bytes = 0
    plain = Twins.start_sum

    def start_sum(ranks: Twins, tensor: torch.Tensor) -> Callable[[], None]:
        nonlocal most_bytes
        held.append(weakref.ref(tensor))
        most_bytes = max(most_bytes, sum(t.nbytes for ref in held if (t := ref()) is not None))
        return plain(ranks, tensor)

    monkeypatch.setattr(Twins, "start_sum", start_sum)
    layers, buffer_bytes = model(dtype), 2 * 4 * 72
    sums = GradientSums(
        list(layers.parameters()), Twins(), Reduction(most_bytes=buffer_bytes, starts_early=starts_early)
    )
    sums.open(0)
    alone = model(dtype)
    for module in (alone, layers):
        module(torch.ones(1, 8, dtype=dtype)).sum().backward()
    sums.start_rest(0)
    assert sum(ref() is not None for ref in held) <= 2
    sums.finish([2.0] * 8)
    assert len(held) == (4 if dtype == torch.float32 else 2)
    assert most_bytes <= buffer_bytes
    assert all(ref() is None for ref in held)
    for parameter, own in zip(layers.parameters(), alone.parameters(), strict=True):
        assert parameter.grad is not None
        assert own.grad is not None
        assert torch.equal(parameter.grad, 2 * own.grad)


def test_16_bit_gradients_are_summed_as_set() -> None:
    own, exact, *_ = summed(Reduction(), torch.bfloat16)
    _, in_16_bit, *_ = summed(Reduction(precision="weights"), torch.bfloat16)
    _, at_random, *_ = summed(Reduction(precision="float32_stochastic"), torch.bfloat16)
    for gradient, totals in zip(own, zip(exact, in_16_bit, at_random, strict=True), strict=True):
        for total in totals:  # a doubled bfloat16 is one, so each kind of rounding keeps it
            assert gradient is None or (total is not None and torch.equal(total, 2 * gradient))


def test_buckets_are_laid_out_anew_only_when_other_weights_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out: list[int] = []

    def in_one_bucket(given: list[nn.Parameter]) -> list[list[nn.Parameter]]:
        laid_out.append(len(given))
        return [given]

    monkeypatch.setattr(gradient_sums, "_in_buckets", in_one_bucket)
    layers = model()
    sums = GradientSums(list(layers.parameters()), Twins(), Reduction())
    for step in range(4):
        if step == 2:
            layers[0].requires_grad_(False)
        layers(torch.ones(1, 8)).sum().backward()
        sums.start_rest(step)
        sums.finish([2.0 for p in layers.parameters() if p.requires_grad])
    assert laid_out == [8, 6]


@dataclass
class Forsaken(Twins):
    """The other process has ended: no sum is completed."""

    def start_sum(self, tensor: torch.Tensor) -> Callable[[], None]:
        self.started.append(tensor.numel())

        def wait() -> None:
            self.num_open += 1
            raise LostProcessError("Another process of this run has ended.")

        return wait


def test_sums_that_a_lost_process_leaves_open_can_be_discarded() -> None:
    """Otherwise the last backup after its loss would fail, too."""
    ranks, layers = Forsaken(), model()
    sums = GradientSums([*layers.parameters()], ranks, Reduction())
    sums.open(0)
    layers(torch.ones(1, 8)).sum().backward()
    sums.start_rest(0)
    sums.discard()
    assert ranks.num_open == len(ranks.started) > 1
