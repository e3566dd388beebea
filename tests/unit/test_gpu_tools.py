"""What is known of the GPUs when the driver's tool is slow, broken or missing, and what the user reads then."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from modules.config.schema import Config
from modules.settings.edit import replace_value
from modules.system import gpu_tools, hardware
from modules.system.devices import Device
from modules.system.gpu_tools import Card, cards_of_torch, run_tool
from modules.system.hardware import GpuMemory, Hardware, gpu_memory, here
from trainer.events import Event, PhaseChanged
from trainer.launch import num_processes
from trainer.machine_events import MemoryMeasured
from trainer.preflight.budget import memory_problems
from trainer.preflight.devices import problems_of_devices
from trainer.preflight.ranks import problems_of_ranks
from trainer.run import machine
from trainer.run.meters import MemoryMeter

EIGHT = "9.0\n" * 8
_SECONDS = 0.2  # for a tool that never answers; one that does has the program's own limit, on a busy machine too

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tool is a script of a shell")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gpu_tools, "_unresponsive", set())
    monkeypatch.setattr(hardware, "torch_build", lambda: "cu130")
    here.cache_clear()
    yield
    here.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str | None, *, tool: str = "nvidia-smi") -> None:
    """Let PATH contain a tool of a driver, or none."""
    if script is not None:
        (folder / tool).write_text(f"#!/bin/sh\n{script}\n")
        (folder / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def torch_reports(monkeypatch: pytest.MonkeyPatch, *cards: Card, answers: bool = True) -> list[int]:
    """Let torch report these GPUs; return the list of the questions."""
    asked: list[int] = []

    def report(number: int = -1) -> tuple[Card, ...] | None:
        asked.append(number)
        return cards if answers else None

    monkeypatch.setattr(hardware, "cards_of_torch", report)
    return asked


def be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a tool that never answers no longer than a test can."""
    monkeypatch.setattr(hardware, "run_tool", lambda command: run_tool(command, seconds=_SECONDS))


SLOW = "exec sleep 60"
SENTENCE = "nvidia-smi did not answer within 0.2 seconds"


def test_a_tool_that_takes_seconds_is_waited_for() -> None:
    """The driver is loaded for the first question: 4 seconds on a machine with eight GPUs, up to 20 are waited for."""
    assert gpu_tools.TOOL_SECONDS >= 15
    assert gpu_tools.TORCH_SECONDS >= 30


def test_a_tool_that_answers_is_believed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, f"printf '{EIGHT}'")
    asked = torch_reports(monkeypatch, answers=False)
    assert here() == Hardware("cu130", False, (9.0,) * 8)
    assert asked == []


def test_torch_answers_for_a_tool_that_is_too_slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    be_impatient(monkeypatch)
    install(monkeypatch, tmp_path, SLOW)
    asked = torch_reports(monkeypatch, *[Card(9.0, 80 << 30, 79 << 30)] * 8)
    config = replace_value(Config(), "multi_gpu.enabled", True)
    assert num_processes(config) == 8
    assert not here().why_unknown
    assert gpu_memory("cuda:3", ask=hardware.run_tool) == GpuMemory(80 << 30, 79 << 30)
    assert gpu_memory("cuda:8", ask=hardware.run_tool) is None
    assert asked == [-1, 3]


def test_a_tool_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, SLOW)
    started, plain = list[str](), subprocess.run

    def start(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        started.extend(command)
        return plain(command, **options)

    monkeypatch.setattr(subprocess, "run", start)
    for _ in range(3):
        with pytest.raises(subprocess.TimeoutExpired):
            run_tool(("nvidia-smi",), seconds=_SECONDS)
    assert started == ["nvidia-smi"]


@pytest.mark.parametrize(
    ("script", "why"),
    [(SLOW, SENTENCE), ("echo No devices were found; exit 6", "nvidia-smi failed: No devices were found"),
     ("exit 9", "nvidia-smi failed with code 9"), ("echo '[N/A]'", "the answer of nvidia-smi is not understood")],
    ids=["slow", "no devices", "broken", "no capability"],
)  # fmt: skip
def test_the_user_reads_that_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, why: str
) -> None:
    if script == SLOW:
        be_impatient(monkeypatch)
    install(monkeypatch, tmp_path, script)
    torch_reports(monkeypatch, answers=False)
    assert here() == Hardware("cu130", False, None, why)
    [problem] = problems_of_devices(Config())
    assert (problem.path, problem.severity) == ("general.train_device", "warning")
    assert f"Nothing is known about the GPUs of this machine: {why}." in problem.message
    assert list(problems_of_devices(replace_value(Config(), "general.train_device", "cpu"))) == []
    several = replace_value(Config(), "multi_gpu.enabled", True)
    problem = next(iter(problems_of_ranks(several)))  # it would train on one of eight
    assert (problem.path, problem.severity) == ("multi_gpu.device_indexes", "error")
    assert f"How many GPUs this machine has is not known: {why}." in problem.message
    named = replace_value(several, "multi_gpu.device_indexes", "0, 1")
    assert not [p for p in problems_of_ranks(named) if p.path.startswith("multi_gpu")]
    assert num_processes(named) == 2


def test_a_machine_without_a_driver_is_silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Torch's usual build for Linux is one for CUDA, so many machines without a GPU have it."""
    install(monkeypatch, tmp_path, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    asked = torch_reports(monkeypatch)
    monkeypatch.setattr(gpu_tools, "_DRIVER", tmp_path / "none")
    monkeypatch.setattr(gpu_tools, "_GPU_DEVICES", ())
    assert here() == Hardware("cu130", False, None, has_no_driver=sys.platform == "linux")
    assert (here().kind_of("auto") == "cpu") == (sys.platform == "linux")
    assert list(problems_of_devices(Config())) == []
    if sys.platform == "linux":
        [problem] = problems_of_devices(replace_value(Config(), "general.train_device", "cuda"))
        assert problem.message == "cuda cannot be used: no NVIDIA driver is loaded."
    here.cache_clear()
    monkeypatch.setattr(gpu_tools, "_GPU_DEVICES", (tmp_path,))  # the tool may lie where PATH does not lead
    assert here() == Hardware("cu130", False, None)
    assert here().kind_of("auto") == ""
    here.cache_clear()
    monkeypatch.setattr(gpu_tools, "_DRIVER", tmp_path)
    monkeypatch.setattr(hardware, "has_nvidia_driver", lambda: True)  # in a container without the tool
    assert here() == Hardware("cu130", False, (), "nvidia-smi is not installed")
    assert asked == [-1]


def test_amd_gpus_are_those_that_torch_finds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hardware, "torch_build", lambda: "rocm7.2")
    install(monkeypatch, tmp_path, "exit 1")
    torch_reports(monkeypatch, Card(11.0, 24 << 30, 23 << 30), Card(11.0, 24 << 30, 20 << 30))
    assert here() == Hardware("rocm7.2", False, (0.0, 0.0))
    assert here().kind_of("auto") == "cuda"
    assert num_processes(replace_value(Config(), "multi_gpu.enabled", True)) == 2
    assert gpu_memory("cuda:1") == GpuMemory(24 << 30, 20 << 30)
    [problem] = problems_of_devices(replace_value(Config(), "general.train_device", "cuda:2"))
    assert "this machine has 2 AMD GPUs" in problem.message
    here.cache_clear()
    torch_reports(monkeypatch)
    [problem] = problems_of_devices(Config())
    assert "torch finds no AMD GPU" in problem.message


def test_a_hidden_amd_gpu_is_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """rocm-smi counts all of them, torch those that are visible."""
    monkeypatch.setattr(hardware, "torch_build", lambda: "rocm7.2")
    install(monkeypatch, tmp_path, "printf 'device,total,used\\ncard0,100,1\\n'", tool="rocm-smi")
    torch_reports(monkeypatch, Card(11.0, 200, 150))
    assert gpu_memory("auto") == GpuMemory(100, 99)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert gpu_memory("auto") == GpuMemory(200, 150)


def test_torch_is_asked_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process it has no GPU, and the window's process has no torch."""
    assert cards_of_torch() == ()  # torch's build for CPUs
    assert cards_of_torch(seconds=0.01) is None
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        get_device_properties=lambda index: SimpleNamespace(major=8, minor=6 + index, total_memory=1000 + index),
        mem_get_info=lambda index: (10 * index, 1000),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    assert cards_of_torch(1) == (Card(8.6, 1000, 0), Card(8.7, 1001, 10))


def test_memory_that_no_tool_reports_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    budget: Any = SimpleNamespace(config=Config())
    monkeypatch.setattr(hardware, "here", lambda: Hardware("cu130", False, (12.1,)))
    [problem] = memory_problems(budget, memory_of=lambda device: None)
    assert (problem.path, problem.severity) == ("general.train_device", "info")
    monkeypatch.setattr(hardware, "here", lambda: Hardware("cpu", False, None))
    assert list(memory_problems(budget, memory_of=lambda device: None)) == []


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int | None]]:
    """The limits that were set, with the GPU, which has 6 of 8 GiB free, and 1 GiB in use by this process."""
    noted: list[tuple[float, int | None]] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (6 << 30, 8 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1 << 30)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    # As torch itself finds the device: it refuses one without an index.
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda share, device: noted.append((share, torch.cuda._utils._get_device_index(device))),
    )
    return noted


def test_on_windows_nothing_spills_into_the_computers_memory(
    monkeypatch: pytest.MonkeyPatch, fractions: list[tuple[float, int | None]]
) -> None:
    monkeypatch.setattr(machine, "_SPILLS", True)
    with machine.no_spill(Device("cuda:1")):
        assert fractions == [(7 / 8, 1)]
    assert fractions == [(7 / 8, 1), (1.0, 1)]
    fractions.clear()
    with machine.no_spill(Device("cuda")):  # "auto"
        assert fractions == [(7 / 8, 0)]
    monkeypatch.setattr(torch.version, "hip", "7.2")
    with machine.no_spill(Device("cuda:1")):
        pass
    monkeypatch.setattr(torch.version, "hip", None)
    with machine.no_spill(Device("cpu")):
        pass
    monkeypatch.setattr(machine, "_SPILLS", False)
    with machine.no_spill(Device("cuda:1")):
        pass
    assert len(fractions) == 2


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="only Linux may lack /proc")
def test_linux_without_proc_reports_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run ended with a traceback before its first event."""

    def without_proc(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/proc/meminfo")

    def without_process(*_: object) -> None:
        raise psutil.NoSuchProcess(1)

    total = hardware.total_memory()
    monkeypatch.setattr(psutil, "virtual_memory", without_proc)
    monkeypatch.setattr(psutil, "Process", without_process)
    assert hardware.total_memory() == pytest.approx(total, rel=0.1)
    assert 0 < hardware.free_memory() < hardware.total_memory()
    assert hardware.process_memory() == 0
    events = list[Event]()
    MemoryMeter(events.append, lambda: 0.0).emit(PhaseChanged("loading"))
    assert [type(event) for event in events] == [PhaseChanged, MemoryMeasured]
