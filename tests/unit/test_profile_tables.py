"""The tables of a profile: the program's own functions, and what a GPU waited for, from a trace made by hand."""

from __future__ import annotations

import cProfile
from typing import Any

import pytest

from modules.settings.layer_filter import layer_filter
from trainer.callbacks.profiling import BETWEEN, device_time, function_table

HOST, OTHER = 1, 2


def host(name: str, ts: float, dur: float, *, tid: int = HOST, cat: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": {}}


def kernel(ts: float, dur: float, *, started_at: float, tid: int = HOST, number: int = 0) -> list[dict[str, Any]]:
    number = number or round(started_at * 10)
    start = host("cudaLaunchKernel", started_at, 0.5, tid=tid, cat="cuda_runtime") | {"args": {"correlation": number}}
    on_device = {"ph": "X", "cat": "kernel", "name": "sum", "ts": ts, "dur": dur, "tid": 7}
    return [start, on_device | {"args": {"correlation": number}}]


def test_a_gap_is_put_down_to_what_the_host_did_meanwhile() -> None:
    events = [
        {"ph": "M", "name": "process_name"},
        host("ProfilerStep#3", 0, 1000, cat="user_annotation"),
        *kernel(10, 10, started_at=5),
        host("aten::item", 20, 15),
        host("aten::_local_scalar_dense", 21, 13),  # inside the one before
        *kernel(40, 10, started_at=38),
        *kernel(50, 10, started_at=45),  # follows at once
        host("Optimizer.step", 60, 5),
        *kernel(100, 20, started_at=98),
        host("backward", 101, 100, tid=OTHER),
        *kernel(180, 10, started_at=150, tid=OTHER),
    ]
    found = device_time(events)
    assert found.seconds == pytest.approx(180e-6)
    assert {w.name: (w.times, round(w.seconds * 1e6)) for w in found.waits} == {
        "aten::item": (1, 20),
        BETWEEN: (1, 40),
        "backward": (1, 60),
    }
    assert str(found).splitlines()[0] == "The device waited for 66.7% of 0.000 s:"


def test_streams_that_overlap_leave_no_gap() -> None:
    events = [*kernel(0, 100, started_at=0, number=1), *kernel(20, 30, started_at=1), *kernel(99, 5, started_at=2)]
    assert device_time(events).waits == []


def test_without_a_gpu_nothing_waits() -> None:
    found = device_time([host("aten::mm", 0, 10)])
    assert found.waited_seconds == 0
    assert "A CPU waits for nothing" in str(found)


def test_the_program_s_own_functions_are_named() -> None:
    profile = cProfile.Profile()
    profile.enable()
    layer_filter("all", {})
    profile.disable()
    table, slowest = function_table(profile)
    own = table.split("\n\n")[0]
    assert "modules/settings/layer_filter.py:" in own
    assert " layer_filter" in own
    assert slowest
