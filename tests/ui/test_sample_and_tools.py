"""The Generate page and the Tools page in a real window, with children that the test speaks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from modules.system.remedies import REMEDIES
from tests.ui.conftest import Window
from tests.ui.fake_child import Spawner
from tests.ui.fake_engine import started
from trainer.job_events import ImageSampled, JobFailed, JobFinished, JobProgress
from trainer.jobs.files import ResizeSettings
from trainer.jobs.registry import JOBS
from trainer.jobs.sample import sample_in
from trainer.jobs.spec import AdapterChoice, request_in
from trainer.launch import RunRequest
from ui.features.base_model.window import BaseModelWindow
from ui.features.generate.page import IdleSampleViewer, _texts_in
from ui.loop.interaction import REPLACE_FILE


@pytest.fixture
def lora(tmp_path: Path) -> Path:
    name = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    tensors = {f"{name}.lora_down.weight": np.zeros((4, 320), "float32"),
               f"{name}.lora_up.weight": np.zeros((320, 4), "float32")}  # fmt: skip
    save_file(tensors, tmp_path / "style.safetensors")
    return tmp_path / "style.safetensors"


def test_tools_from_a_dropped_file_to_its_result(window: Window, lora: Path, tmp_path: Path) -> None:
    page: Any = window.open_page("tools")
    spawn = Spawner()
    page.runner._spawn = spawn
    page.drop([lora])
    window.wait_until(lambda: page.inspect.inspection, "the inspection")
    assert page.inspect.sentence.cget("text").startswith("A LoRA of rank 4 for Stable Diffusion 1.x")
    page._open_in("lora-resize", lora)
    form = page.form("lora-resize")
    window.wait_until(lambda: form.form.model.value("source"), "the file in the tool")
    window.settle()
    assert form.form.model.value("out") == str(lora.with_name("style-resized.safetensors"))
    form.start()
    assert "Give a rank" in form.problem.cget("text")
    form.form.model.edit_text("rank", "0")
    form.start()
    assert form.problem.cget("text") == "Rank: 0 is out of range. Allowed: 1 or more."
    form.form.model.edit_text("rank", "2")
    form.form.set("out", str(lora))  # exists: asked, and kept
    form.start()
    assert window.asked.asked("choose")[0][0] == REPLACE_FILE
    assert not spawn.children
    form.form.set("out", str(tmp_path / "new.safetensors"))
    form.button.invoke()
    request = request_in(spawn.last.sent[0], JOBS)
    assert spawn.last.arguments == ["job"]
    assert request == (
        JOBS["lora-resize"],
        ResizeSettings(source=str(lora), out=str(tmp_path / "new.safetensors"), rank=2),
    )
    spawn.last.report(JobProgress("layers", 1, 2))
    window.wait_until(lambda: page.runner.state.share == 0.5, "progress")
    window.settle()
    assert page.job.stop.winfo_ismapped()
    assert form.button.cget("state") == "disabled"
    spawn.last.report(JobFinished("Resized.", (str(tmp_path / "new.safetensors"),), ("Error of the weights: 1.00%.",)))
    spawn.last.end()
    window.wait_until(lambda: page.runner.state.stage == "finished", "the end")
    window.settle()
    assert "Error of the weights: 1.00%." in page.job.notes.cget("text")
    page.job.open_folder.invoke()
    assert window.asked.asked("open_path") == [(tmp_path,)]
    form.form.set("out", str(tmp_path / "other.safetensors"))
    form.button.invoke()
    spawn.last.report(JobFailed("The disk is full.", "Free some space.", remedy="space"))
    spawn.last.end()
    window.wait_until(lambda: page.job.remedy.button is not None, "the button that frees space")
    assert page.job.remedy.button.cget("text") == REMEDIES["space"].label
    merge = page.form("lora-merge")
    merge.add_files([lora, lora])
    window.wait_until(lambda: len(merge.form.model.value("files")) == 2, "two LoRAs")
    files = merge.form.rows["files"].control.frame
    files.remove(0)
    assert merge.form.model.value("files") == (AdapterChoice(str(lora)),)
    files.rows[0][1].set("much")
    merge.start()
    assert "LoRAs: 'much' is not valid" in merge.problem.cget("text")


def test_the_result_of_a_tool_comes_into_view_and_is_found_in_file_dialogs(window: Window, lora: Path) -> None:
    page: Any = window.open_page("tools")
    page.runner._spawn = spawn = Spawner()
    page._open_in("lora-extract", lora)
    form = page.form("lora-extract")
    for name, value in (("base", str(lora)), ("tuned", str(lora)), ("rank", 2)):
        form.form.set(name, value)
    form.form.set("out", str(lora.with_name("extracted.safetensors")))
    form.button.invoke()
    spawn.last.report(JobFinished("Extracted.", (str(lora),), tuple("A note." for _ in range(3))))
    spawn.last.end()
    window.wait_until(lambda: page.job.stage == "finished", "the end")
    window.settle()
    canvas = page.scroll.canvas
    assert page.job.inspect.winfo_rooty() + page.job.inspect.winfo_height() <= canvas.winfo_rooty() + (
        canvas.winfo_height()
    )
    window.app.form.edit("output.destination", str(lora))
    assert ("Results", lora.parent) in window.app._places()
    page.inspect_file(lora.with_name("gone.safetensors"))
    window.wait_until(lambda: page.inspect.inspection, "the inspection")
    assert page.inspect.sentence.cget("text").startswith("There is no file")
    assert page.inspect.inspection.facts == ()


def test_samples_from_the_page_to_the_enlarged_image(window: Window, lora: Path, tmp_path: Path) -> None:
    window.app.form.edit("model.base_model", "owner/name")
    page: Any = window.open_page("sample")
    page.model_card.demo_button.invoke()
    assert page.session.form.value("model.base_model") == "demo/model"
    assert page.session.form.value("sampling.prompts.0.width_px") == 64
    window.app.form.edit("sampling.model", "owner/turbo")
    page.sources.use_config()
    assert page.session.form.value("model.base_model") == "owner/name"
    [card] = page.model_view.cards
    window.wait_until(lambda: card.rows["sampling.model"].is_shown, "the model that takes its place")
    page.session.form.edit("sampling.model", "")
    spawn = Spawner()
    page.session._spawn = spawn
    results = tmp_path / "results"
    results.mkdir()
    window.app.form.edit("output.destination", str(results / "cat.safetensors"))
    page.model_card.loras.add_button.invoke()
    page.sources.drop([lora])
    window.wait_until(lambda: page.model_card.loras.rows, "the LoRA")
    page.model_card.loras.add_button.invoke()
    starts = [arguments[1] for arguments in window.asked.asked("ask_file")]
    assert starts == [results, lora.parent], "it began in the home folder"
    page.model_card.loras.rows[0][1].set("0.5")
    page.session.form.edit("sampling.prompts.0.prompt", "a {red|blue} house")
    kind, values = page.grid_card.axes["x"]
    kind.set("strength")
    values.set("0, 1")
    text = next(_texts_in(page.prompt_view))
    text.focus_force()
    window.app.root.update()
    text.event_generate("<Control-Return>")
    window.wait_until(lambda: spawn.children and spawn.last.sent, "the request")
    request = sample_in(spawn.last.sent[0])
    assert request is not None
    chosen = request.choices
    assert (chosen.adapters[0].strength, chosen.x, chosen.y) == (0.5, "strength=0, 1", "")
    assert request.prompt.prompt == "a {red|blue} house"
    window.wait_until(lambda: page.generate_button.cget("state") == "disabled", "the button, which is drawn later")
    assert not page.grid.empty_text, "it asked to press Generate"
    path = tmp_path / "1.png"
    Image.new("RGB", (16, 16), (200, 10, 10)).save(path)
    spawn.last.report(ImageSampled(str(path), 0, 2, "a red house", 42, "Strength 0", request=1))
    window.wait_until(lambda: page.grid.tiles, "an image while the request is sampled")
    spawn.last.report(JobFinished("Sampled 2 images.", request=1))
    window.wait_until(lambda: page.generate_button.cget("state") == "normal", "the end")
    assert page.status.cget("text") == "Sampled 2 images."
    page.generate()
    window.wait_until(lambda: len(spawn.last.sent) == 2, "the second request")
    spawn.last.report(JobFailed("The model cannot be found.", "Choose one.", request=2, remedy="base_model"))
    window.wait_until(lambda: page.remedy.button is not None, "the button that chooses a model")
    page.remedy.button.invoke()
    [choice] = [child for child in window.app.root.winfo_children() if isinstance(child, BaseModelWindow)]
    assert choice._context.form is page.session.form
    choice.close()
    page.enlarge(0)
    [viewer] = [child for child in window.app.root.winfo_children() if isinstance(child, IdleSampleViewer)]
    viewer.copy_settings()
    assert "a red house" in window.app.root.clipboard_get()
    viewer.close()
    assert page.session.has_worker
    window.app.context.session.begin(RunRequest(window.app.form.config))  # a run needs the memory of the card
    assert window.engine.run is not None
    window.engine.run.emit(started(str(tmp_path)))
    window.wait_until(lambda: not page.session.has_worker, "the end of the worker")
