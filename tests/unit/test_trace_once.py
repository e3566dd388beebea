"""Two estimates at the same time trace the passes of an unknown model once."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from modules.families.registry import FAMILIES
from trainer.preflight import passes

SPEC = FAMILIES["sd"]
CONFIGS: Mapping[str, Mapping[str, Any]] = {part.name: {"no": "shape that ships"} for part in SPEC.parts}


@pytest.mark.parametrize("fails", [False, True])
def test_a_second_estimate_waits_for_the_first_one(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    known: dict[str, Any] = {}
    traces: list[str] = []
    begun, waited = threading.Event(), threading.Event()

    def trace(*_: object) -> None:
        traces.append("trace")
        begun.set()
        waited.wait(60)
        known.update({} if fails else {name: {} for name in CONFIGS})

    monkeypatch.setattr(passes, "recordings_of", lambda _spec, _configs: dict(known))
    monkeypatch.setattr(passes, "trace_in_child", trace)
    monkeypatch.setattr(passes, "_failed", set())
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(passes.passes_of, SPEC, CONFIGS)
        assert begun.wait(60)
        second = threads.submit(passes.passes_of, SPEC, CONFIGS, lambda *_: waited.set())
        errors = [job.exception() for job in (first, second)]
    assert [isinstance(error, ValueError) for error in errors] == [fails, fails]
    assert traces == ["trace"]


def test_an_estimate_that_waits_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "recordings_of", lambda _spec, _configs: {})

    def stop(*_: object) -> None:
        raise InterruptedError

    with passes._one_at_a_time(lambda *_: None), pytest.raises(InterruptedError):
        passes.passes_of(SPEC, CONFIGS, stop)
    assert passes._tracing.acquire(blocking=False)
    passes._tracing.release()
