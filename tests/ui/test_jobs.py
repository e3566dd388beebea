"""Jobs of the window without a window: requests of the tools, the state of a job, the worker of samples."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import encode
from modules.config.schema import Config
from modules.sampling.registry import sampler_labels
from modules.settings.edit import set_path
from modules.settings.field import Section, records_of
from modules.system.errors import DarkroomError
from tests.ui.fake_child import Spawner
from trainer.child.job import JobEnded
from trainer.job_events import ImageAnnotated, ImageSampled, JobFailed, JobFinished, JobProgress, JobStopped
from trainer.jobs.registry import JOBS
from trainer.jobs.sample import SampleRequest, sample_in
from trainer.jobs.spec import AdapterChoice, JobSpec, argument_of, request_in, request_line, validate_settings
from ui.features.generate.model import SampleSession
from ui.features.tools.page import place_for, proposed_output, tools
from ui.loop.background import Background
from ui.loop.jobs import JobRunner, JobState, apply_event


def filled(spec: JobSpec, **values: Any) -> Section:
    """Settings with a value for each of them that is required."""
    texts = {"files": [{"path": "/l/one.safetensors", "strength": 0.5}], "rank": 32, "strengths": "down=1"}
    own = {"source": "/l/one.safetensors", "model": "/m/base", "base": "/m/base", "tuned": "/m/other", "out": "/o/out"}
    known = {name: value for name, value in (texts | own).items() if name in spec.settings.model_fields}
    return validate_settings(spec.settings, known | values)


@pytest.mark.parametrize("spec", tools(), ids=lambda spec: spec.name)
def test_the_request_of_every_tool_is_one_that_the_child_reads(spec: JobSpec) -> None:
    settings = filled(spec, overwrite=True)
    assert request_in(request_line(spec, settings), JOBS) == (spec, settings)
    spec.require_valid(settings)
    for record in records_of(spec.settings):
        if argument_of(spec.settings, record.path).is_required:
            with pytest.raises(DarkroomError, match=f"{record.label} is empty"):
                spec.require_valid(filled(spec, **{record.path: () if record.kind == "list" else " "}))


def test_settings_that_do_not_fit_together_are_said_before_the_start() -> None:
    resize, blocks, combine = JOBS["lora-resize"], JOBS["lora-blocks"], JOBS["lora-combine"]
    blocks.require_valid(filled(blocks, strengths="", preset="only down blocks"))
    for spec, values, reason in (
        (resize, {"rank": "many"}, "'many' is not valid"),
        (resize, {"energy": 2}, "Allowed: above 0 to 1"),
        (resize, {"rank": None}, "Give a rank"),
        (blocks, {"strengths": ""}, "Give the strengths"),
        (combine, {"files": [{"path": "/l/one.safetensors", "strength": "much"}]}, "'much' is not valid"),
    ):
        with pytest.raises(DarkroomError) as error:
            spec.require_valid(filled(spec, **values))
        assert reason in str(error.value)


def test_the_name_of_a_result_and_the_place_of_a_dropped_file() -> None:
    resize, merge = JOBS["lora-resize"], JOBS["lora-merge"]
    assert proposed_output(resize, filled(resize)) == "/l/one-resized.safetensors"
    assert proposed_output(merge, filled(merge)) == "/m/base-merged"
    assert proposed_output(merge, merge.settings()) == ""

    def place(name: str, *, is_lora: bool, **values: Any) -> str:
        record = place_for(JOBS[name], validate_settings(JOBS[name].settings, values), is_lora=is_lora)
        return record.path if record is not None else ""

    assert [place("lora-merge", is_lora=lora) for lora in (True, False)] == ["files", "model"]
    assert [place("lora-resize", is_lora=lora) for lora in (True, False)] == ["source", ""]
    assert [place("convert", is_lora=lora) for lora in (True, False)] == ["source", "source"]
    assert place("lora-extract", is_lora=False, base="/m/base") == "tuned"


def test_the_states_of_a_job() -> None:
    state = JobState("running", "Resize")
    state = apply_event(state, JobProgress("layers", 5, 10, 62.0))
    assert (state.share, state.status) == (0.5, "Layers: 5 of 10, 0:01:02 left")
    assert apply_event(state, JobProgress("reading", 0, 1)).status == "Reading"
    done = apply_event(state, JobFinished("Resized.", ("/o/x",), ("A note.",)))
    assert (done.stage, done.status, done.paths) == ("finished", "Resized.", (Path("/o/x"),))
    assert apply_event(done, JobEnded(0, "")) is done
    failed = apply_event(state, JobFailed("It does not fit.", "Choose another."))
    assert failed.failure is not None
    assert failed.failure.advice == "Choose another."
    annotated = apply_event(state, ImageAnnotated("x/a.png", True, "a cat"))
    annotated = apply_event(annotated, ImageAnnotated("x/b.png", False, problem="an empty file"))
    assert apply_event(annotated, ImageAnnotated("x/c.png", False)).lines == ("a.png: a cat", "▲ b.png: an empty file")
    broken = apply_event(state, JobEnded(-9, "first\nlast words\n"))
    assert broken.stage == "failed"
    assert broken.failure is not None
    assert broken.failure.details == "first\nlast words\n"


def wait_for(drain: Callable[[float], bool], condition: Callable[[], object]) -> None:
    """Drain until a condition holds: the lines of a child are read on a thread."""
    deadline = time.monotonic() + 120
    while not condition():
        drain(0.0)
        assert time.monotonic() < deadline


def test_a_job_runs_in_a_process_and_is_stopped() -> None:
    spawn = Spawner()
    runner = JobRunner(spawn=spawn)
    resize = JOBS["lora-resize"]
    runner.start(resize, filled(resize))
    assert spawn.last.arguments == ["job"]
    assert request_in(spawn.last.sent[0], JOBS) == (resize, filled(resize))
    runner.start(resize, filled(resize))
    assert len(spawn.children) == 1  # one at a time
    spawn.last.report(JobProgress("layers", 1, 2))
    wait_for(runner.drain, lambda: runner.state.share == 0.5)
    runner.stop()
    assert json.loads(spawn.last.sent[-1]) == {"command": "Stop"}
    spawn.last.report(JobStopped())
    spawn.last.end(130)
    wait_for(runner.drain, lambda: runner.state.stage == "stopped")
    runner.start(resize, filled(resize))
    runner.close()
    assert spawn.last.is_closed


@pytest.fixture
def session(tmp_path: Path) -> Any:
    """A session of samples with a fake worker: the session, its worker, and a wait."""
    spawn, background = Spawner(), Background()
    config, _ = set_path(Config(), "model.base_model", "owner/name")  # of the Hub: no files to look at
    config, _ = set_path(config, "general.workspace_dir", str(tmp_path))
    own = SampleSession(config, background, state_file=tmp_path / "sample.json", spawn=spawn)

    def wait(condition: Callable[[], object]) -> None:
        def drain(_deadline: float) -> bool:
            return own.drain(0.0) or background.drain(time.perf_counter() + 0.01)

        wait_for(drain, condition)

    return own, spawn, wait, config


def test_the_worker_is_kept_between_presses(session: Any, tmp_path: Path) -> None:
    own, spawn, wait, config = session
    own.form.edit("sampling.prompts.0.prompt", "a house")
    own.choose(adapters=(AdapterChoice("/l/one.safetensors", 0.5),), num_images="2", x="steps=1-3")
    assert own.start() == ""
    wait(lambda: spawn.children and spawn.last.sent)
    assert spawn.last.arguments == ["sample", "--serve"]
    request = sample_in(spawn.last.sent[0])
    assert request is not None
    assert (request.prompt.prompt, request.choices.num_images, request.choices.x) == ("a house", 2, "steps=1-3")
    spawn.last.report(
        JobProgress("sampling", 1, 6),
        ImageSampled(str(tmp_path / "1.png"), 0, 6, "a house", 42, "Steps 1", request=1),
        JobFinished("Sampled 6 images.", request=1),
    )
    wait(lambda: own.state.stage == "finished")
    assert [image.caption for image in own.images] == ["Steps 1"]
    own.start()
    wait(lambda: len(spawn.last.sent) == 2)
    assert len(spawn.children) == 1
    own.stop()
    assert json.loads(spawn.last.sent[-1]) == {"command": "Stop"}
    spawn.last.report(JobStopped(request=2))
    wait(lambda: own.state.stage == "stopped")
    own.unload()
    wait(lambda: not own.has_worker)
    state_file = tmp_path / "sample.json"
    wait(state_file.is_file)  # it is written by another thread
    again = SampleSession(config, Background(), state_file=state_file, spawn=spawn)
    assert again.form.value("sampling.prompts.0.prompt") == "a house"  # found again after a restart
    assert again.choices.adapters == own.choices.adapters


def test_the_request_that_is_kept_is_the_last_one_also_on_a_slow_disk(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next window began with the one before."""
    own, _, _, config = session
    writes: list[Callable[[], object]] = []
    monkeypatch.setattr(own._background, "_submit", lambda job: writes.append(job.work))
    own.state = JobState("running")
    own._send(SampleRequest(own.form.config, own.choices, 1))
    own.form.edit("sampling.prompts.0.prompt", "the last")
    own.close()
    (slow,) = writes
    slow()
    again = SampleSession(config, Background(), state_file=tmp_path / "sample.json")
    assert again.form.value("sampling.prompts.0.prompt") == "the last"


def test_a_request_of_an_earlier_version_is_restored(tmp_path: Path) -> None:
    """Until version 4 of the config the choices were not one section, and an axis was a pair."""
    config, _ = set_path(Config(), "sampling.prompts", [{"prompt": "a boat"}])
    old = {
        "request": 3, "config": encode(config), "folder": "/w/samples", "adapters": [["/l/one.safetensors", 0.5]],
        "embeddings": ["/e/zog.safetensors"], "num_images": 2, "wildcards": "cards", "backup": "", "run": "/r",
        "x": ["steps", "10-50 (+10)"],
    }  # fmt: skip
    state_file = tmp_path / "sample.json"
    state_file.write_text(json.dumps(old), encoding="utf-8")
    session = SampleSession(Config(), Background(), state_file=state_file)
    assert session.was_restored
    assert session.form.value("sampling.prompts.0.prompt") == "a boat"
    assert session.choices.adapters == (AdapterChoice("/l/one.safetensors", 0.5),)
    assert session.choices.embeddings == ("/e/zog.safetensors",)
    assert (session.choices.num_images, session.choices.x, session.choices.y) == (2, "steps=10-50 (+10)", "")
    assert (session.choices.wildcards, session.choices.run) == ("cards", "")
    state_file.write_text(json.dumps({**old, "adapters": 5}), encoding="utf-8")
    assert not SampleSession(Config(), Background(), state_file=state_file).was_restored


def test_what_cannot_be_sampled_is_said_before_anything_starts(session: Any) -> None:
    own, spawn, wait, _config = session
    own.choose(num_images="many")
    assert "Images: 'many' is not valid" in own.start()
    own.choose(num_images="1", x="sampler=no_such")
    assert own.start() == ""
    wait(lambda: own.state.stage == "failed")
    assert own.state.message == "There is no sampler 'no_such'."
    assert ", ".join(sampler_labels()) in own.state.failure.advice
    own.form.edit_text("sampling.prompts.0.steps", "many")
    assert own.start()
    assert not spawn.children


def test_the_settings_of_an_image_are_used_again(session: Any, tmp_path: Path) -> None:
    from PIL import Image

    from modules.config.sections.evaluation import SamplePrompt
    from trainer.jobs.sample_images import settings_of, write_image
    from trainer.jobs.sample_sources import Cell, Weights

    own, *_ = session
    cell = Cell(SamplePrompt(prompt="a boat", steps=3, sampler="euler"), Weights())
    write_image(Image.new("RGB", (8, 8)), tmp_path / "x.png", settings_of(cell, "base"))
    assert own.use_settings_of(tmp_path / "x.png")
    assert (own.form.value("sampling.prompts.0.prompt"), own.form.value("sampling.prompts.0.steps")) == ("a boat", 3)
    Image.new("RGB", (8, 8)).save(tmp_path / "y.png")
    assert not own.use_settings_of(tmp_path / "y.png")
