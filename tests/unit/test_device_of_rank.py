"""The GPU of a process: its own number, one of those that a run names, or the one of the settings."""

from __future__ import annotations

import pytest
import torch

from modules.system.devices import CPU, Device
from modules.system.errors import DarkroomError
from modules.system.ranks import ONLY_RANK, Rank
from trainer.run.machine import device_of_rank


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
