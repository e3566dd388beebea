"""Estimates share their work: an unknown model is traced once, and each pass is replayed once."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.estimate.passes import Passes
from modules.families.registry import FAMILIES
from modules.settings.edit import replace_value
from trainer.preflight import passes
from trainer.preflight.run_budget import memory_estimate

SPEC = FAMILIES["sd"]
SIZES = {Size(512, 512): 4}
SDXL = {"model": {"family": "sdxl", "base_model": "stabilityai/stable-diffusion-xl-base-1.0"}}
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


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The families of the passes that are replayed, none of which is known."""
    found: list[str] = []
    replay = Passes._replay

    def counted(self: Passes, *arguments: Any, **options: Any) -> Any:
        found.append(self._spec.name)
        return replay(self, *arguments, **options)

    monkeypatch.setattr(passes, "_recent", [])
    monkeypatch.setattr(Passes, "_replay", counted)
    return found


def test_passes_are_replayed_once_for_all_estimates_of_a_model(replayed: list[str]) -> None:
    """A change of the config that changes no pass is estimated without one, also in another budget."""
    first = memory_estimate(Config(), SIZES)
    num_first = len(replayed)
    assert num_first > 0
    assert memory_estimate(Config(), SIZES) == first
    assert memory_estimate(replace_value(Config(), "training.epochs", 3), SIZES) == first
    assert len(replayed) == num_first
    assert memory_estimate(replace_value(Config(), "training.batch_size", 5), SIZES) != first
    assert len(replayed) > num_first
    passes._recent.clear()
    assert memory_estimate(Config(), SIZES) == first


def test_few_models_and_results_are_kept(replayed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_MAX_RECENT", 1)
    monkeypatch.setattr("modules.estimate.passes._MOST_KNOWN", 2)
    first, sdxl = memory_estimate(Config(), SIZES), Config.model_validate(SDXL)
    assert first is not None
    assert memory_estimate(sdxl, SIZES) != first
    [kept] = passes._recent
    assert kept._spec is FAMILIES["sdxl"]
    assert len(kept._known) == 2
    num_before = len(replayed)
    assert memory_estimate(Config(), SIZES) == first
    assert len(replayed) > num_before
