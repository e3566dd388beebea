"""The passes of a model of a new shape are traced in another process: with progress, stoppable, and once."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from modules.config.schema import Config
from modules.families.parts.single_file.models import shipped_configs
from modules.families.registry import FAMILIES
from tests.unit.preflight.setups import changed
from trainer.child.process import spawn_python
from trainer.commands import StopRequested
from trainer.events import Event, PhaseChanged
from trainer.preflight import check, passes
from trainer.preflight.passes import ESTIMATING, passes_of
from trainer.preflight.report import Progress, no_progress
from trainer.run.execute import _check_progress

_trace_in_child = passes.trace_in_child  # the real one: tests trace in their own process
SPEC = FAMILIES["sd"]


def configs_of(**unet: Any) -> dict[str, Mapping[str, Any]]:
    configs = dict(shipped_configs("sd1"))
    return {**configs, "unet": {**configs["unet"], **unet}}


def spawn(monkeypatch: pytest.MonkeyPatch, script: str) -> list[subprocess.Popen[str]]:
    """Let a script run in place of a trace, and return its processes."""
    children: list[subprocess.Popen[str]] = []

    def start(_arguments: object, errors: int) -> subprocess.Popen[str]:
        children.append(spawn_python(["-S", "-c", script], errors))
        return children[-1]

    monkeypatch.setattr(passes, "spawn_python", start)
    return children


def test_a_stop_ends_the_trace_and_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    children, reports = spawn(monkeypatch, "import sys, time; sys.stdin.read(); time.sleep(60)"), 0

    def stop(what: str, _done: int, _total: int) -> None:
        nonlocal reports
        reports += 1
        assert what == ESTIMATING
        if reports == 3:
            raise StopRequested

    with pytest.raises(StopRequested):
        _trace_in_child(SPEC, configs_of(), stop)
    assert reports == 3
    assert children[0].returncode not in (None, 0)


def test_a_trace_that_fails_says_why_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spawn(monkeypatch, "raise ValueError('no such block')")
    with caplog.at_level(logging.WARNING):
        _trace_in_child(SPEC, {"unet": {}}, no_progress)
    assert "unet" in caplog.text
    assert "ValueError: no such block" in caplog.text


def test_a_shape_that_cannot_be_traced_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    monkeypatch.setattr(passes, "_failed", set())
    monkeypatch.setattr(passes, "trace_in_child", lambda _spec, missing, _progress: tried.append(set(missing)))
    for _ in range(3):
        with pytest.raises(ValueError, match="unet could not be estimated"):
            passes_of(SPEC, configs_of(layers_per_block=17))
    with pytest.raises(ValueError, match="unet could not be estimated"):
        passes_of(SPEC, configs_of(layers_per_block=18))
    assert tried == [{"unet"}, {"unet"}]


def test_a_part_is_traced_although_a_model_with_it_could_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    monkeypatch.setattr(passes, "_failed", set())
    monkeypatch.setattr(passes, "recordings_of", lambda _spec, _configs: {})
    monkeypatch.setattr(passes, "trace_in_child", lambda _spec, missing, _progress: tried.append(missing["unet"]))
    invalid, mended = configs_of(layers_per_block=17), configs_of()
    for configs in (invalid, mended):
        with pytest.raises(ValueError, match="could not be estimated"):
            passes_of(SPEC, configs)
    assert tried == [invalid["unet"], mended["unet"]]


def test_the_check_reports_the_trace_before_it_estimates(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[Progress] = []
    reports: list[tuple[str, int, int]] = []
    progress = lambda *report: reports.append(report)  # noqa: E731
    monkeypatch.setattr(passes, "_failed", set())
    monkeypatch.setattr(passes, "recordings_of", lambda _spec, _configs: {})
    published = changed(config, model__base_model="stable-diffusion-v1-5/stable-diffusion-v1-5")
    monkeypatch.setattr(passes, "trace_in_child", lambda _spec, _missing, progress: traced.append(progress))
    check(published, progress=progress)
    assert traced == [progress]
    assert ("scanning", 0, 5) in reports


def test_a_run_shows_the_trace_as_a_phase_and_can_be_stopped() -> None:
    events: list[Event] = []
    checks: list[int] = []
    report = _check_progress(events.append, lambda: checks.append(1))
    for _ in range(3):
        report(ESTIMATING, 0, 1)
    assert events == [PhaseChanged("estimating")]
    assert len(checks) == 3
