"""Recomputing a pass: the same results and gradients as the plain pass, with less kept, in all that training does."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from modules.memory import recomputation

Run = Callable[[torch.Tensor], torch.Tensor]


def recomputed(run: Run, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = recomputation.recomputed(run, (x,), {})
    return result


@pytest.fixture
def layers() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 4), torch.nn.Sigmoid()
    )


def gradients(layers: torch.nn.Module, run: Run, *, needs_input: bool = True, times: int = 1) -> list[torch.Tensor]:
    """Return the result, the gradients, and what the random generator gives next."""
    layers.zero_grad()
    torch.manual_seed(1)
    x = torch.randn(3, 4, requires_grad=needs_input)
    result = run(run(x))
    for _ in range(times):
        result.square().sum().backward(retain_graph=True)
    found = [p.grad.clone() for p in (*layers.parameters(), x) if p.grad is not None]
    return [result.detach(), *found, torch.rand(2)]


def assert_equal(ours: list[torch.Tensor], plain: list[torch.Tensor]) -> None:
    assert len(ours) == len(plain)
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("needs_input", [True, False])
def test_it_equals_the_plain_pass_with_dropout(layers: torch.nn.Module, *, needs_input: bool, times: int) -> None:
    plain = gradients(layers, layers, needs_input=needs_input, times=times)
    ours = gradients(layers, lambda x: recomputed(layers, x), needs_input=needs_input, times=times)
    assert_equal(ours, plain)


def test_nested_passes_equal_the_plain_one(layers: torch.nn.Sequential) -> None:
    def nested(x: torch.Tensor) -> torch.Tensor:
        return recomputed(lambda y: recomputed(layers[2:], recomputed(layers[:2], y)), x)

    assert_equal(gradients(layers, nested), gradients(layers, layers))


def test_the_autocast_of_the_first_pass_is_used_again(layers: torch.nn.Module) -> None:
    def inside(run: Run) -> Run:
        def cast(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return run(x)

        return cast

    assert_equal(gradients(layers, inside(lambda x: recomputed(layers, x))), gradients(layers, inside(layers)))
    x = torch.randn(3, 4, requires_grad=True)
    result = recomputed(layers, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # that of the backward pass is not
        result.sum().backward()


def test_where_nothing_needs_a_gradient_none_is_computed(layers: torch.nn.Module) -> None:
    layers.requires_grad_(False)
    assert not recomputed(layers, torch.randn(3, 4)).requires_grad
    with torch.no_grad():
        assert not recomputed(layers, torch.randn(3, 4, requires_grad=True)).requires_grad


def test_only_the_inputs_are_saved_and_hooks_around_see_them(layers: torch.nn.Module) -> None:
    saved: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor.clone()

    x = torch.randn(3, 4, requires_grad=True)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = recomputed(layers, x)
    assert saved == [0, x.numel()]
    result.sum().backward()
    assert x.grad is not None


def test_nothing_is_computed_beyond_the_last_tensor_that_is_needed() -> None:
    calls: list[str] = []

    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        calls.append("after the last saved tensor")
        return y + 1

    recomputed(run, torch.ones(2, requires_grad=True)).sum().backward()
    assert len(calls) == 1


def test_a_pass_is_freed_after_its_backward_pass_without_a_collection(layers: torch.nn.Module) -> None:
    """Automatic collection is off during a run: a reference cycle would keep the tensors of many steps."""
    inside: list[weakref.ref[torch.Tensor]] = []

    def run(x: torch.Tensor) -> torch.Tensor:
        y = layers(x)
        inside.append(weakref.ref(y))
        return y.square().sum(dim=1).tanh()

    gc.collect()
    gc.disable()
    try:
        x = torch.randn(3, 4, requires_grad=True)
        recomputed(run, x).sum().backward()
        assert len(inside) == 2
        assert [ref() for ref in inside] == [None, None]
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_recomputation_that_differs_is_refused() -> None:
    sizes = iter([2, 3, 2])
    x = torch.ones(4, requires_grad=True)
    result = recomputed(lambda y: y[: next(sizes)].exp(), x)
    with pytest.raises(RuntimeError, match="differs from the first"):
        result.sum().backward()
    counts = iter([3, 1])

    def run(y: torch.Tensor) -> torch.Tensor:
        for _ in range(next(counts)):
            y = y.exp()
        return y

    with pytest.raises(RuntimeError, match="3 tensors then 1"):
        recomputed(run, x).sum().backward()


def test_random_states_of_all_devices_are_kept_also_of_tensors_given_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text encoder gets keyword arguments only; on a GPU its dropout needs the state of that GPU."""
    seen: list[object] = []

    def states(*tensors: torch.Tensor) -> tuple[list[int], list[torch.Tensor]]:
        seen.extend(tensor.device.type for tensor in tensors)
        return [], []

    monkeypatch.setattr(recomputation, "get_device_states", states)
    with FakeTensorMode():
        on_gpu = torch.empty(2, device="cuda")
    recomputation._State((torch.ones(1), 3), {"input": on_gpu})
    assert seen == ["cuda"]
