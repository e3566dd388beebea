"""Profiling of steps: files in the run's folder, an event, the same losses, and a run that ends too early."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import profile as benchmark_profile
from benchmarks.loop_speed import for_measuring
from modules.config.schema import Config
from tests.builders.configs import config_fixture, laid_over
from tests.builders.runs import Ran, run
from trainer.callbacks import profiling
from trainer.commands import ProfileNow
from trainer.events import RunStarted, StepFinished, WarningRaised
from trainer.machine_events import ProfileWritten

config = config_fixture("tiny_sd", {"training": {"epochs": 3}})


def profiled_run(config: Config) -> Ran:
    """Run, and send the command as the run starts."""
    return run(config, on_event=lambda event, send: send(ProfileNow()) if isinstance(event, RunStarted) else None)


@pytest.mark.full
def test_a_profile_is_written_and_changes_nothing(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "NUM_STEPS", 2)
    monkeypatch.setattr(profiling, "WARMUP_STEPS", 1)
    plain, profiled = run(config), profiled_run(config)
    assert [s.loss for s in profiled.of(StepFinished)] == [s.loss for s in plain.of(StepFinished)]
    [written] = profiled.of(ProfileWritten)
    folder = Path(written.path)
    assert (folder.name, folder.parent.name, written.step) == ("step-00000002", "profile", 6)
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert "aten::" in (folder / "operators.txt").read_text()
    functions = (folder / "functions.txt").read_text()
    assert "tottime" in functions
    assert "trainer/step/stepper.py" in functions.split("tottime")[0]
    assert "A CPU waits for nothing" in (folder / "waits.txt").read_text()
    assert sorted(file.name for file in folder.iterdir()) == [
        "functions.txt",
        "operators.txt",
        "trace.json",
        "waits.txt",
    ]
    assert written.slowest
    assert written.summary.startswith(f"Profiled 2 steps: trace and tables are in {folder}. Most of the host's time: ")
    assert plain.of(ProfileWritten) == []


@pytest.mark.full
def test_the_benchmark_profiles_as_many_steps_as_wanted(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark_profile, "waits_per_step", lambda *arguments, **options: {"item in a.py:1": 1.5})
    endless = for_measuring(config, tmp_path / "measured", epochs=1000)
    found = benchmark_profile.profile_config("tiny", endless, tmp_path / "out", num_steps=1, num_threads=1)
    assert sorted(path.name for path in found.folder.iterdir()) == sorted(benchmark_profile.FILES)
    assert "own function" in str(found)
    assert "The host waits for the device 1.50 times a step:" in str(found)


def test_a_run_that_ends_first_says_so(config: Config) -> None:
    ran = profiled_run(laid_over(config, {"training": {"epochs": 2}}))
    assert "The run ended before the profile was complete; it was discarded." in [
        w.message for w in ran.of(WarningRaised)
    ]
