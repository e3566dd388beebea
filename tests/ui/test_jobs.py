"""Jobs of the window without a window: command lines of the tools, the state of a job, the worker of samples."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.sampling.registry import sampler_labels
from modules.settings.edit import set_path
from tests.ui.fake_child import Spawner
from trainer.__main__ import _parser
from trainer.child.job import JobEnded
from trainer.idle_sampling.request import AdapterChoice, AxisChoice, request_in
from trainer.job_events import ImageAnnotated, ImageSampled, JobFailed, JobFinished, JobProgress, JobStopped
from ui.features.generate.model import SampleSession
from ui.features.tools.model import BLOCKS, COMBINE, EXTRACT, MERGE, RESIZE, TOOLS, MissingValueError, ToolSpec
from ui.forms.values import joined_files
from ui.loop.background import Background
from ui.loop.jobs import JobRunner, JobState, reduced

FILES = joined_files([("/l/one.safetensors", "0.5"), ("/l/two.safetensors", "-1")])


def defaults(tool: ToolSpec, **values: str) -> dict[str, str]:
    return {field.name: field.default for field in tool.fields} | values


def filled(tool: ToolSpec, **values: str) -> dict[str, str]:
    """Values for all fields of a tool that need one."""
    texts = {"model": "/m/base", "lora": "/l/one.safetensors", "loras": FILES, "save_lora": "/o/out.safetensors"}
    texts |= {"save_model": "/o/out", "save_any": "/o/out", "text": "1"}
    own = {field.name: texts[field.kind] for field in tool.fields if field.kind in texts and field.is_required}
    return defaults(tool, **own) | {"strengths": "down=1"} | values


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.verb)
def test_the_command_line_of_every_tool_is_one_that_its_verb_reads(tool: ToolSpec) -> None:
    options = _parser().parse_args([*tool.command(filled(tool), overwrite=True), "--json-lines"])
    assert options.overwrite
    assert options.json_lines
    for field in tool.fields:
        if field.is_required and field.kind not in ("choice", "flag"):
            with pytest.raises(MissingValueError, match=f"{field.label} is empty"):
                tool.command(filled(tool, **{field.name: " "}))


def test_the_values_of_tools() -> None:
    assert MERGE.command(filled(MERGE))[3:] == ["/l/one.safetensors:0.5", "/l/two.safetensors:-1"]
    assert "--no-text-encoders" in EXTRACT.command(filled(EXTRACT, text=""))
    assert "--no-text-encoders" not in EXTRACT.command(filled(EXTRACT))
    assert RESIZE.command(filled(RESIZE, energy="0.9"))[3:] == ["--rank", "32", "--energy", "0.9"]
    assert BLOCKS.command(filled(BLOCKS, strengths="", preset="only down blocks"))[-1] == "only down blocks"
    for tool, values, reason in (
        (RESIZE, {"rank": "many"}, "Rank is 'many'"),
        (RESIZE, {"energy": "2"}, "at most 1"),
        (RESIZE, {"rank": ""}, "Give a rank"),
        (BLOCKS, {"strengths": ""}, "Give the strengths"),
        (COMBINE, {"files": joined_files([("/l/one.safetensors", "much")])}, "'much' is not a strength"),
    ):
        with pytest.raises(MissingValueError, match=reason):
            tool.command(filled(tool, **values))
    assert RESIZE.proposed_output({"source": "/l/one.safetensors"}) == str(Path("/l/one-resized.safetensors"))
    assert MERGE.proposed_output({"model": "/m/base", "files": FILES}) == str(Path("/m/base-merged"))
    assert MERGE.proposed_output({"model": "", "files": ""}) == ""


def test_the_states_of_a_job() -> None:
    state = JobState("running", "Resize")
    state = reduced(state, JobProgress("layers", 5, 10, 62.0))
    assert (state.share, state.status) == (0.5, "layers: 5 of 10, 0:01:02 left")
    assert reduced(state, JobProgress("reading", 0, 1)).status == "reading"
    done = reduced(state, JobFinished("Resized.", ("/o/x",), ("A note.",)))
    assert (done.stage, done.status, done.paths) == ("finished", "Resized.", (Path("/o/x"),))
    assert reduced(done, JobEnded(0, "")) is done
    failed = reduced(state, JobFailed("It does not fit.", "Choose another."))
    assert failed.failure is not None
    assert failed.failure.advice == "Choose another."
    annotated = reduced(state, ImageAnnotated("x/a.png", True, "a cat"))
    annotated = reduced(annotated, ImageAnnotated("x/b.png", False, problem="an empty file"))
    assert reduced(annotated, ImageAnnotated("x/c.png", False)).lines == ("a.png: a cat", "▲ b.png: an empty file")
    broken = reduced(state, JobEnded(-9, "first\nlast words\n"))
    assert broken.stage == "failed"
    assert broken.failure is not None
    assert broken.failure.advice == "last words"


def wait_for(drain: Callable[[float], bool], condition: Callable[[], object]) -> None:
    """Drain until a condition holds: the lines of a child are read on a thread."""
    deadline = time.monotonic() + 20
    while not condition():
        drain(0.0)
        assert time.monotonic() < deadline


def test_a_job_runs_in_a_process_and_is_stopped() -> None:
    spawn = Spawner()
    runner = JobRunner(spawn=spawn)
    runner.start("Resize", ["lora-resize", "a", "b"])
    assert spawn.last.arguments == ["lora-resize", "a", "b", "--json-lines"]
    runner.start("Another", [])
    assert len(spawn.children) == 1  # one at a time
    spawn.last.report(JobProgress("layers", 1, 2))
    wait_for(runner.drain, lambda: runner.state.share == 0.5)
    runner.stop()
    assert json.loads(spawn.last.sent[-1]) == {"command": "Stop"}
    spawn.last.report(JobStopped())
    spawn.last.end(130)
    wait_for(runner.drain, lambda: runner.state.stage == "stopped")
    runner.start("Next", ["x"])
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
    own.choose(adapters=(AdapterChoice("/l/one.safetensors", 0.5),), num_images="2", x=AxisChoice("steps", "1-3"))
    assert own.start() == ""
    wait(lambda: spawn.children and spawn.last.sent)
    assert spawn.last.arguments == ["sample", "--serve"]
    request = request_in(spawn.last.sent[0])
    assert request is not None
    assert (request.prompt.prompt, request.num_images, request.x) == ("a house", 2, AxisChoice("steps", "1-3"))
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
    again = SampleSession(config, Background(), state_file=tmp_path / "sample.json", spawn=spawn)
    assert again.form.value("sampling.prompts.0.prompt") == "a house"  # found again after a restart
    assert again.choices.adapters == own.choices.adapters


def test_what_cannot_be_sampled_is_said_before_anything_starts(session: Any) -> None:
    own, spawn, wait, _config = session
    own.choose(num_images="many")
    assert "Images is 'many'" in own.start()
    own.choose(num_images="1", x=AxisChoice("sampler", "no_such"))
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
    from trainer.idle_sampling.image_files import settings_of, write_image
    from trainer.idle_sampling.request import Cell, Weights

    own, *_ = session
    cell = Cell(SamplePrompt(prompt="a boat", steps=3, sampler="euler"), Weights())
    write_image(Image.new("RGB", (8, 8)), tmp_path / "x.png", settings_of(cell, "base"))
    assert own.use_settings_of(tmp_path / "x.png")
    assert (own.form.value("sampling.prompts.0.prompt"), own.form.value("sampling.prompts.0.steps")) == ("a boat", 3)
    Image.new("RGB", (8, 8)).save(tmp_path / "y.png")
    assert not own.use_settings_of(tmp_path / "y.png")
