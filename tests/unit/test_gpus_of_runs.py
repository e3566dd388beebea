"""The GPU of a process: its own number, one of those that a run names, or the one of the settings. Apple's GPUs."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from modules.optim.updates.sliced_step import reads_flag
from modules.system.allocator import grows_segments
from modules.system.devices import CPU, Device, seeded_global_rng, widest_float
from modules.system.errors import DarkroomError
from modules.system.ranks import ONLY_RANK, Rank
from trainer.run.machine import device_of_rank, take_first_memory


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices that became torch's current one, on a machine with four GPUs."""
    chosen: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append(str(device)))
    return chosen


@pytest.mark.parametrize(
    ("device", "rank", "named", "expected"),
    [
        ("cuda", ONLY_RANK, "", "cuda"),
        ("cuda:2", ONLY_RANK, "", "cuda:2"),
        ("cuda", ONLY_RANK, "3", "cuda:3"),  # several GPUs switched on, of which one is named
        ("cuda", Rank(1, 2, 1, 2), "", "cuda:1"),
        ("cuda", Rank(1, 2, 1, 2), "0, 3", "cuda:3"),
        ("cuda", Rank(5, 6, 1, 2), "0, 3", "cuda:3"),  # on the third machine
    ],
)
def test_a_process_gets_its_gpu(current: list[str], device: str, rank: Rank, named: str, expected: str) -> None:
    assert device_of_rank(Device(device), rank, named).name == expected
    assert current == ([expected] if expected != "cuda" else [])


def test_a_cpu_stays_and_a_missing_gpu_is_an_error(current: list[str]) -> None:
    assert device_of_rank(CPU, Rank(1, 2, 1, 2), "0, 1") is CPU
    with pytest.raises(DarkroomError, match="2 processes on this machine, but only 1 GPU"):
        device_of_rank(Device("cuda"), Rank(1, 2, 1, 2), "0")
    assert not current


@pytest.mark.parametrize(
    ("settings", "refuses", "expected"),
    [
        ("expandable_segments:True", False, []),
        ("expandable_segments:True", True, ["expandable_segments:False"]),
        ("expandable_segments:True,max_split_size_mb:64", True, None),  # of the user: the error is the answer
        ("", False, []),
    ],
)
def test_a_driver_that_refuses_segments_that_grow_gets_fixed_ones(
    monkeypatch: pytest.MonkeyPatch, settings: str, refuses: bool, expected: list[str] | None
) -> None:
    """As in the subsystem of Windows, and in some containers: the very first allocation fails."""
    asked, made = list[str](), torch.empty

    def empty(*size: int, device: Any = None) -> torch.Tensor:
        if refuses and not asked:
            raise RuntimeError("CUDA driver error: unknown error")
        return made(*size)

    monkeypatch.setattr(os, "environ", {"PYTORCH_ALLOC_CONF": settings} if settings else {})
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", asked.append, raising=False)
    take_first_memory(CPU)
    take_first_memory(Device("cuda"))
    assert asked == (expected or [])
    assert grows_segments() == (settings == "expandable_segments:True" and not asked)


def test_the_generator_of_an_apple_gpu_is_seeded_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    for name, function in (("get_rng_state", generator.get_state), ("set_rng_state", generator.set_state)):
        monkeypatch.setattr(torch.mps, name, lambda *given, function=function: function(*given[:-1]))
    monkeypatch.setattr(torch.mps, "manual_seed", generator.manual_seed)
    before, here = generator.get_state(), torch.get_rng_state()
    with seeded_global_rng(7, Device("mps")):
        assert generator.initial_seed() == torch.initial_seed() == 7
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(torch.get_rng_state(), here)


def test_apples_gpus_have_no_float64() -> None:
    assert [widest_float(torch.device(kind)) for kind in ("cpu", "cuda", "mps")] == [
        torch.float64, torch.float64, torch.float32
    ]  # fmt: skip


def test_apples_kernels_are_not_trusted_with_the_flag_of_a_skipped_step() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], fused=True)
    kinds = [torch.device(kind) for kind in ("cuda", "cpu", "mps")]
    optimizer.param_groups[0]["skips_on_device"] = True
    assert [reads_flag(optimizer, kind) for kind in kinds] == [True, True, False]
    optimizer.param_groups[0]["skips_on_device"] = False
    assert not any(reads_flag(optimizer, kind) for kind in kinds)
