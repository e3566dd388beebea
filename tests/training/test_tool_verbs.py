"""The LoRA tools as verbs: what a user types, what a program reads, and a stop that leaves nothing behind."""

from __future__ import annotations

import io
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from modules.adapters.tools.opening import open_adapter
from modules.families.kinds.identify import identify
from modules.system.errors import DarkroomError
from tests.training.test_lora_tools import assert_same, changes, write_lora
from trainer import commands
from trainer.__main__ import main
from trainer.cli.options import split_strength
from trainer.event_lines import job_event
from trainer.job import Job
from trainer.job_events import JobFailed, JobFinished, JobProgress, JobStopped

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is typed counts from the test's own folder."""
    monkeypatch.setenv("DARKROOM_CALLER_DIR", str(tmp_path))


def test_every_tool_as_it_is_typed(tiny_sd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_lora(tmp_path / "one.safetensors", tiny_sd, seed=1)
    write_lora(tmp_path / "two.safetensors", tiny_sd, seed=2)
    assert main(["lora-merge", str(tiny_sd), "merged", "one.safetensors:0.5"]) == 0
    assert identify(tmp_path / "merged").is_model
    assert main(["lora-extract", str(tiny_sd), "merged", "out.safetensors", "--rank", "4", "--dtype", "float32"]) == 0
    half = {place: 0.5 * change for place, change in changes(open_adapter(one)).items()}
    assert_same(changes(open_adapter(tmp_path / "out.safetensors")), half)
    assert main(["lora-combine", "sum.safetensors", "one.safetensors", "two.safetensors:-1"]) == 0
    assert main(["lora-resize", "sum.safetensors", "small.safetensors", "--rank", "2", "--dtype", "float16"]) == 0
    assert {t.dtype for t in load_file(tmp_path / "small.safetensors").values()} == {torch.float16}
    assert main(["lora-blocks", "one.safetensors", "blocks.safetensors", "down=0.5"]) == 0
    told = capsys.readouterr()
    assert "Error of the weights:" in told.err
    assert str(tmp_path / "blocks.safetensors") in told.out
    before = (tmp_path / "sum.safetensors").read_bytes()
    assert main(["lora-resize", "one.safetensors", "sum.safetensors", "--rank", "2"]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["lora-resize", "one.safetensors", "one.safetensors", "--rank", "2", "--overwrite"]) == 2
    assert "is the source" in capsys.readouterr().err
    assert main(["lora-resize", "one.safetensors", "more.safetensors"]) == 2
    assert "No rank is given" in capsys.readouterr().err
    assert (tmp_path / "sum.safetensors").read_bytes() == before


def test_a_program_reads_events_and_stops_a_tool(
    tiny_sd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lora(tmp_path / "one.safetensors", tiny_sd, seed=1)
    monkeypatch.setattr("trainer.cli.console._read_commands", lambda *_: None)
    arguments = ["lora-resize", "one.safetensors", "out.safetensors", "--rank", "1", "--json-lines"]
    assert main(arguments) == 0
    events = [job_event(line) for line in capsys.readouterr().out.splitlines()]
    assert isinstance(events[0], JobProgress)
    assert isinstance(events[-1], JobFinished)
    assert events[-1].paths == (str(tmp_path / "out.safetensors"),)
    assert main(arguments) == 2
    assert isinstance(job_event(capsys.readouterr().out), JobFailed)
    files = set(tmp_path.iterdir())

    def stop_soon(self: Job, what: str, done: int, total: int) -> None:
        if what.startswith("writing"):
            raise commands.StopRequested

    monkeypatch.setattr(Job, "progress", stop_soon)
    assert main([*arguments, "--overwrite"]) == 130
    assert isinstance(job_event(capsys.readouterr().out.splitlines()[-1]), JobStopped)
    assert set(tmp_path.iterdir()) == files


def test_a_stop_comes_from_the_parent_or_with_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainer.cli.console import _read_commands

    for text in (commands.to_line(commands.Stop()) + "\n", ""):
        desk = commands.CommandDesk()
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        _read_commands(desk, partial(desk.put, commands.Stop()))
        assert desk.is_stop_requested
        assert "Standard input has ended" in capsys.readouterr().err, "a run without one stopped for no visible reason"


def test_progress_tells_the_time_left_and_is_not_told_too_often() -> None:
    events: list[object] = []
    now = [0.0]
    job = Job(events.append, clock=lambda: now[0])
    for done in range(101):
        job.progress("layers", done, 100)
        now[0] += 0.0625
    assert len(events) < 60
    assert events[-1] == JobProgress("layers", 100, 100, 0.0)
    assert JobProgress("layers", 50, 100, pytest.approx(3.125)) in events  # type: ignore[arg-type]
    job.desk.put(commands.Stop())
    with pytest.raises(commands.StopRequested):
        job.progress("layers", 1, 2)


def test_strengths_behind_paths() -> None:
    assert split_strength("a.safetensors") == ("a.safetensors", 1.0)
    assert split_strength("a/b.safetensors:-0.5") == ("a/b.safetensors", -0.5)
    assert split_strength(r"C:\loras\b.safetensors") == (r"C:\loras\b.safetensors", 1.0)
    assert split_strength(r"C:\loras\b.safetensors:2") == (r"C:\loras\b.safetensors", 2.0)
    for word in ("x", "nan", "1e999", ""):  # not finite numbers were blamed on the weights of the file
        with pytest.raises(DarkroomError, match="is not a strength"):
            split_strength(f"a.safetensors:{word}")
