"""The image of a profile, from a trace made by hand: which steps, which lanes, and what took the time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.unit.test_step_profile import HOST, OTHER, host, kernel
from trainer.step.step_profile import BETWEEN
from trainer.step.step_timeline import timeline_of, write_timeline


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    return host(f"ProfilerStep#{number}", ts, dur, cat="user_annotation")


def backward(name: str, ts: float, dur: float) -> dict[str, Any]:
    return host(f"autograd::engine::evaluate_function: {name}", ts, dur, tid=OTHER)


STEPS = [step(n, 100 * n, 100) for n in range(4)]
OPERATIONS = [
    host("aten::conv2d", 10, 80),  # of a step that is not shown
    host("aten::conv2d", 110, 40),
    host("aten::convolution", 112, 30),
    host("aten::mul", 210, 20),
    backward("ConvolutionBackward0", 235, 60),
]


def test_the_two_steps_in_the_middle_are_shown_with_the_operations_of_each_thread() -> None:
    timeline = timeline_of([*STEPS, *OPERATIONS])
    assert timeline is not None
    assert timeline.seconds == pytest.approx(200e-6)
    assert timeline.step_starts == pytest.approx([0, 100e-6])
    main, other = timeline.threads
    assert (main.label, other.label) == ("host", "backward")
    assert [(s.name, s.depth) for s in main.spans] == [("aten::conv2d", 0), ("aten::convolution", 1), ("aten::mul", 0)]
    assert [(s.name, round(s.start * 1e6)) for s in other.spans] == [("ConvolutionBackward0", 135)]
    assert {name: round(seconds * 1e6) for name, seconds in timeline.host} == {
        BETWEEN: 80, "ConvolutionBackward0": 60, "aten::conv2d": 40, "aten::mul": 20,
    }  # fmt: skip
    assert {name: round(seconds * 1e6) for name, seconds in timeline.own} == {
        "ConvolutionBackward0": 60, "aten::convolution": 30, "aten::mul": 20, "aten::conv2d": 10,
    }  # fmt: skip
    assert timeline.device is None


def test_what_the_gpu_does_not_cover_is_drawn_as_a_wait(tmp_path: Path) -> None:
    events = [*STEPS, *OPERATIONS, *kernel(100, 100, started_at=100, tid=HOST), *kernel(250, 50, started_at=210)]
    timeline = timeline_of(events)
    assert timeline is not None
    assert timeline.device is not None
    assert timeline.waits.waited_seconds == pytest.approx(50e-6)
    write_timeline(tmp_path / "timeline.png", timeline, title="Two steps")
    with Image.open(tmp_path / "timeline.png") as image:
        colours = Counter(image.convert("RGB").get_flattened_data())
    busy, waits = colours[58, 110, 165], colours[200, 55, 45]
    assert waits > 1000
    assert busy > 2 * waits


def test_a_trace_without_operations_has_no_image_and_one_without_steps_is_shown_as_a_whole() -> None:
    assert timeline_of(STEPS) is None
    timeline = timeline_of(OPERATIONS)
    assert timeline is not None
    assert timeline.seconds == pytest.approx(285e-6)
