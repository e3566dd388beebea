"""The card at the end of a run: what it shows is what the run's record has, and its buttons lead on."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.schema import Config
from modules.families.kinds.identify import identify
from modules.model_finder.programs import program_at
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT
from tests.builders.model_folders import alone_on_machine, checkpoint, comfyui
from tests.ui.conftest import Window
from tests.ui.driving import main_buttons
from tests.ui.fake_engine import started, step
from tests.ui.test_secrets_dialog import click
from tests.unit.test_kinds import write_header
from tests.unit.test_run_records import write_run
from trainer.events import Event, ModelSaved, RunFailed, RunFinished, SampleReady, ValidationFinished
from trainer.run_folder.records import read_record
from trainer.run_folder.result import record_result, use_as_result
from ui.features.run.end_card import EndCard
from ui.features.run.ending import end_of, look_at, pairs_of
from ui.features.run.notices import BestOffer, UsedModel
from ui.features.run.program_copy import copy_into
from ui.features.run.samples import write_stars
from ui.loop.background import JobCancelledError
from ui.loop.past_runs import read_past_state
from ui.loop.run_state import RunState

NAME = "2026-03-01_12-00-00"
LAYER = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"


def write_lora(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shapes: dict[str, tuple[int, ...]] = {
        f"{LAYER}.lora_down.weight": (4, 320),
        f"{LAYER}.lora_up.weight": (320, 4),
        f"{LAYER}.alpha": (),
    }
    return write_header(path, shapes)


@pytest.fixture
def home(home_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return alone_on_machine(home_dir, monkeypatch)


def finished_run(tmp_path: Path, *last: Event) -> Path:
    """Write a run of 40 steps with samples of two prompts at three steps, a result and a backup; return its folder."""
    run_dir = tmp_path / "workspace/runs" / NAME
    result = write_lora(tmp_path / "models/zog.safetensors")
    samples = []
    for at in (0, 20, 40):
        for index in (0, 1):
            image = run_dir / f"samples/{index}/step-{at}.png"
            samples.append(SampleReady(at, index, f"prompt {index}", str(image)))
    ending = last or (
        ModelSaved(40, str(result), "kohya", is_final=True, loading={"ComfyUI": "yes"}),
        RunFinished("finished", 40, "Finished after 40 steps.", str(result)),
    )
    events = (started(str(run_dir)), *samples[:2], step(40), *samples[2:], *ending)
    write_run(tmp_path / "workspace", NAME, [(n, event) for n, event in enumerate(events)], has_backup=True)
    for sample in samples:
        Path(sample.path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (sample.step * 5, 80, 80)).save(sample.path)
    return run_dir


def test_the_end_of_a_run_is_what_its_record_has(tmp_path: Path) -> None:
    run_dir = finished_run(tmp_path)
    state, record = read_past_state(run_dir), read_record(run_dir)
    end = end_of(state)
    assert end is not None
    assert (end.run_dir, end.result, end.step) == (record.run_dir, record.outputs[-1], record.step)
    facts = look_at(end)
    assert facts is not None
    assert facts.text.startswith("LoRA, ")
    assert facts.backup == record.newest_backup
    assert facts.sampled is not None
    assert facts.sampled.path == end.result
    assert [(p.before and p.before.step, p.after.step) for p in pairs_of(state.samples, end)] == [(0, 40), (0, 40)]
    write_stars(run_dir, {"samples/1/step-20.png"})
    stars = look_at(end)
    assert stars is not None
    assert [(p.after.index, p.after.step) for p in pairs_of(state.samples, end, stars.starred)] == [(1, 20), (0, 40)]
    end.result.unlink()
    assert look_at(end) is None


@pytest.mark.parametrize(
    "last",
    [
        RunFailed("It failed."),
        RunFinished("stopped", 20, "Stopped.", "/save/zog-20.safetensors", "/backup"),
        RunFinished("finished", 40, "Finished.", ""),
    ],
)
def test_a_run_without_a_result_has_no_card(tmp_path: Path, last: Event) -> None:
    assert end_of(read_past_state(finished_run(tmp_path, last))) is None
    assert end_of(RunState()) is None


def test_each_kind_of_file_is_copied_where_comfyui_reads_it(tmp_path: Path) -> None:
    program = program_at(comfyui(tmp_path / "ComfyUI"))
    assert program is not None
    lora = write_lora(tmp_path / "out/zog.safetensors")
    (tmp_path / "out/zog_embeddings").mkdir()
    (tmp_path / "out/zog_embeddings/word.safetensors").write_bytes(b"1")
    copy = copy_into(program, lora, identify(lora))
    models = program.path / "models"
    places = [models / "loras/zog.safetensors", models / "embeddings/word.safetensors"]
    assert [place for _, place in copy.files] == places
    total = lora.stat().st_size + 1

    def stop(_what: str, done: int, _total: int) -> None:
        assert done == total - 1
        raise JobCancelledError

    with pytest.raises(JobCancelledError):
        copy.write(stop)
    assert not list((models / "loras").iterdir()), "a copy that was stopped leaves nothing"
    reports: list[tuple[int, int]] = []
    copy.write(lambda _what, *numbers: reports.append(numbers))
    assert reports == [(total - 1, total), (total, total)]
    assert copy.is_there
    (models / "loras/zog.safetensors").write_bytes(b"of somebody else")
    assert copy.taken == (models / "loras/zog.safetensors",)
    free = copy.with_free_names()
    free.write(lambda *_progress: None)
    assert (models / "loras/zog-2.safetensors").read_bytes() == lora.read_bytes()
    assert (models / "loras/zog.safetensors").read_bytes() == b"of somebody else"
    model = checkpoint(tmp_path / "out/model.safetensors")
    model.with_suffix(".yaml").write_text("model:")
    places = [place for _, place in copy_into(program, model, identify(model)).files]
    assert places == [models / "checkpoints/model.safetensors", models / "checkpoints/model.yaml"]
    folder = PROGRAM_ROOT / "demo/model"
    with pytest.raises(DarkroomError, match="no folder for model"):
        copy_into(program, folder, identify(folder))


@pytest.fixture
def card(window: Window, home: Path, tmp_path: Path) -> EndCard:
    """The card on the Run page, for a run that was opened later."""
    run_dir = finished_run(tmp_path)
    window.app.context.session.show_past(read_past_state(run_dir))
    page = window.open_page("run")
    window.wait_until(lambda: page.end_card.winfo_manager(), "the card")  # type: ignore[attr-defined]
    window.settle()
    return page.end_card  # type: ignore[attr-defined,no-any-return]


def test_the_name_of_the_result_is_readable_next_to_wide_buttons(window: Window, card: EndCard) -> None:
    """At a scale of 150 % the title was "cup_flux_v1.sa"."""
    window.app.root.minsize(1, 1)
    for width in (860, 600):  # in the narrower one even the buttons have too little room
        window.app.root.geometry(f"{width}x600+0+0")
        window.wait_until(lambda: card.title.cget("text") == "Ready", "a short title")
        window.settle()
        assert card.title.cget("text") == "Ready"
        assert str(card.text.cget("text")).startswith("zog.safetensors: Finished")
    window.app.root.geometry("1100x740+0+0")
    window.wait_until(lambda: card.title.cget("text") == "zog.safetensors is ready", "the whole title")


def test_the_card_shows_the_samples_and_opens_the_generate_page(window: Window, card: EndCard) -> None:
    assert card.title.cget("text") == "zog.safetensors is ready"
    assert main_buttons(window.app.root) == ["Try it"], "and not Start"
    window.wait_until(lambda: all(label.cget("image") for label in card._images.values()), "the images")
    assert len(card._images) == 4
    assert card.end is not None
    page = window.app.shell.page("run")
    best = BestOffer(20, 0.1, card.end.result, card.end.result, 40, card.end.run_dir)
    page.notices.used = UsedModel(best, None)  # type: ignore[attr-defined]
    window.app.context.session.changed()
    window.wait_until(lambda: [pair.after.step for pair in card.pairs] == [20, 20], "the samples of the best model")
    click(card.buttons["show"])
    assert window.asked.asked("open_path")[0][0] == card.end.result.parent
    click(card.buttons["try"])
    window.settle()
    page = window.app.shell.page("sample")
    assert window.app.context.navigation.page == "sample"
    assert [path.name for path, _ in page.model_card.loras.rows] == ["zog.safetensors"]  # type: ignore[attr-defined]
    window.open_page("run")
    click(card.buttons["close"])
    window.settle()
    assert not card.winfo_manager()
    assert main_buttons(window.app.root) == ["Start"]


def test_comfyui_is_asked_for_once_and_replaces_nothing_unasked(
    window: Window, card: EndCard, home: Path, tmp_path: Path
) -> None:
    def copies(shown: str) -> None:
        click(card.buttons["copy"])
        window.wait_until(lambda: shown in card.text._whole, shown)

    asked = window.asked
    asked.answers["ask_folder"] = tmp_path
    in_settings = comfyui(tmp_path / "in settings")
    settings = home / "settings/ComfyUI/config.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"basePath": str(in_settings)}))
    click(card.buttons["copy"])
    window.wait_until(lambda: asked.asked("ask_folder"), "the question")
    assert asked.asked("ask_folder")[0][1] == in_settings, "it is proposed, and not written to unasked"
    window.settle()
    ((failure,),) = asked.asked("show_failure")
    assert "is not the folder of ComfyUI: models/checkpoints and models/loras are not in it." in failure.message
    assert window.app.preferences.now.model_folders == ()
    asked.answers["ask_folder"] = comfyui(tmp_path / "elsewhere/ComfyUI")
    has_stopped = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ui.features.run.program_copy.copy_file", lambda *_copy: has_stopped.wait(120))
        copies("Copying to ComfyUI")
        window.wait_until(lambda: card._copying is not None, "the copy")
        copies("The copy was stopped.")
        has_stopped.set()
    window.settle()
    assert card.buttons["copy"]._text == "Copy to ComfyUI"
    program = tmp_path / "elsewhere/ComfyUI"
    place = program / "models/loras/zog.safetensors"
    place.write_bytes(b"of somebody else")
    asked.answers["choose"] = "keep"
    copies("Copied to ComfyUI: loras/zog-2.safetensors.")
    assert place.read_bytes() == b"of somebody else"
    asked.answers["choose"] = "replace"
    copies("Copied to ComfyUI: loras/zog.safetensors.")
    assert len(asked.asked("ask_folder")) == 2
    copies("ComfyUI has it already")
    assert window.app.preferences.now.model_folders == (str(program),)


def test_train_longer_resumes_the_run_with_more_epochs(
    window: Window, card: EndCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "ui.features.run.model.Starter.train_longer",
        lambda _self, backup, epochs, *, stopped_early: resumed.append((backup.step, epochs + 100 * stopped_early)),
    )
    window.asked.answers["ask_text"] = "many"
    click(card.buttons["longer"])
    window.asked.answers["ask_text"] = "7"
    click(card.buttons["longer"])
    assert resumed == [(20, 17)]
    assert "10 epochs" in window.asked.asked("ask_text")[0][1]


def test_a_low_window_shows_the_card_once_the_result_is_decided(window: Window, home: Path, tmp_path: Path) -> None:
    result = str(tmp_path / "models/zog.safetensors")
    run_dir = finished_run(
        tmp_path,
        ModelSaved(20, str(tmp_path / "best.safetensors"), "kohya", is_final=False, best_by="validation"),
        ValidationFinished(40, 0.5, best_loss=0.25, best_step=20),
        ModelSaved(40, result, "kohya", is_final=True),
        RunFinished("finished", 40, "Finished after 40 steps.", result),
    )
    window.app.root.geometry("1100x600+0+0")
    window.app.context.session.show_past(read_past_state(run_dir), Config())
    page = window.open_page("run")
    window.wait_until(lambda: page.notices.best.winfo_manager(), "the offer")  # type: ignore[attr-defined]
    window.settle()
    assert not page.end_card.winfo_manager()  # type: ignore[attr-defined]
    click(page.notices.best.buttons["Keep step 40"])  # type: ignore[attr-defined]
    window.wait_until(lambda: page.end_card.winfo_manager(), "the card")  # type: ignore[attr-defined]


def test_the_best_model_is_not_offered_after_another_one_was_chosen(window: Window, home: Path, tmp_path: Path) -> None:
    best, result = tmp_path / "best.safetensors", tmp_path / "zog.safetensors"
    run_dir = finished_run(
        tmp_path,
        ModelSaved(20, str(best), "kohya", is_final=False, best_by="validation"),
        ValidationFinished(40, 0.5, best_loss=0.25, best_step=20),
        ModelSaved(40, str(result), "kohya", is_final=True),
        RunFinished("finished", 40, "Finished after 40 steps.", str(result)),
    )
    for file in (best, result):
        file.write_bytes(b"model")
    session = window.app.context.session
    session.show_past(read_past_state(run_dir), Config())
    page: Any = window.open_page("run")
    window.wait_until(lambda: page.notices.best.winfo_manager(), "the offer")
    record_result(run_dir, result, [result], step=40, destination=result)
    use_as_result(best, result, run_dir=run_dir, is_kept=True, step=30)  # as the window of checkpoints does
    session.changed()
    window.wait_until(lambda: not page.notices.best.winfo_manager(), "no offer")
