"""The card of a first start: the ways to begin, and the steps that follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from modules.config.presets import DEMO
from modules.config.schema import Config
from modules.data.concept import Concept
from modules.families.registry import FAMILIES, newest_families
from modules.system.hardware import GpuMemory
from tests.ui.conftest import Window
from tests.ui.driving import walk
from trainer.launch import RunRequest
from ui.app.catalogue import PAGES
from ui.features.captions.annotate_window import AnnotateWindow
from ui.features.first_steps.model import WAYS, GraphicsCard, Progress, current_step, find_card
from ui.forms.model import Source
from ui.widgets.notices import CRASHED_RUN, Notice
from ui.widgets.panel import Text

OF_DEMO = Source(DEMO, Path("demo.json"), "built_in")
OTHER = Source("#sd 1.5 LoRA", Path("lora.json"), "built_in")
WITH_IMAGES = Config.model_validate({"concepts": [{"path": "images"}]})
WITH_PROMPT = Config.model_validate({"concepts": [{"path": "images"}], "sampling": {"prompts": [{"prompt": "a cat"}]}})


@pytest.mark.parametrize(
    ("way", "progress", "step"),
    [
        ("demo", Progress(Config(), Source()), "Load the demo"),
        ("demo", Progress(Config(), OF_DEMO), "Start"),
        ("demo", Progress(Config(), OF_DEMO, has_started=True), "Watch"),
        ("demo", Progress(Config(), OF_DEMO, has_started=True, has_finished=True), ""),
        ("images", Progress(WITH_PROMPT, OF_DEMO, WITH_PROMPT), "Preset"),  # those of the demo are not the user's
        ("images", Progress(WITH_IMAGES, OF_DEMO), "Prompt"),  # who adds images to the demo uses its model
        ("images", Progress(WITH_PROMPT, OF_DEMO, WITH_IMAGES), "Preset"),
        ("images", Progress(WITH_PROMPT, OF_DEMO), "Start"),
        ("images", Progress(Config(), OTHER), "Images"),
        ("images", Progress(WITH_IMAGES, OTHER), "Prompt"),
        ("images", Progress(WITH_PROMPT, OTHER), "Start"),
        ("images", Progress(WITH_PROMPT, OTHER, num_images=10, num_captions=9), "Captions"),
        ("images", Progress(WITH_IMAGES, OTHER, num_images=10, num_captions=10), "Prompt"),
        ("images", Progress(WITH_IMAGES, OTHER, num_images=10, skipped=frozenset({"Captions"})), "Prompt"),
        ("config", Progress(Config(), OF_DEMO), "Open"),
        ("config", Progress(Config(), Source("old", Path("old.json"), "file"), num_errors=2), "Check"),
        ("config", Progress(Config(), Source("a kohya file")), "Start"),
    ],
)
def test_the_first_open_step_is_the_current_one(way: str, progress: Progress, step: str) -> None:
    number = current_step(WAYS[way], progress)
    titles = [s.title for s in WAYS[way].steps]
    assert (titles[number] if number < len(titles) else "") == step


def test_every_step_opens_a_page_or_runs_an_action(window: Window) -> None:
    pages = {page.key for page in PAGES}
    for way in WAYS.values():
        assert way.steps or way.action
        for step in way.steps:
            assert bool(step.action) is not bool(step.page)
            assert step.page in pages or window.app.context.actions[step.action]
    assert not window.app.shell.first_steps.winfo_ismapped()


def test_the_card_leads_through_the_demo_and_stays_away_once_closed(
    open_window: Callable[..., Window], tmp_path: Path
) -> None:
    window = open_window(first_steps="choose")
    card, context = window.app.shell.first_steps, window.app.context
    assert card.winfo_ismapped()
    assert [card.buttons[name].cget("text") for name in WAYS] == [way.label for way in WAYS.values()]
    assert card.buttons["resume"].cget("state") == "disabled"  # nothing to continue
    context.notices.show(Notice(CRASHED_RUN, "It ended unexpectedly."))
    window.settle()
    assert "resume" not in card.buttons  # the notice offers the same
    context.notices.remove(CRASHED_RUN)
    window.settle()
    assert "resume" in card.buttons
    card.buttons["demo"].invoke()
    window.settle()
    assert context.form.source.name == DEMO
    assert context.preferences.now.first_steps == "demo"
    assert card.buttons["go"].cget("text") == "Start"
    card.buttons["back"].invoke()
    window.settle()
    card.buttons["images"].invoke()
    window.settle()
    assert card.buttons["go"].cget("text") == "Presets…"
    context.form.load(Config(), OTHER)
    window.settle()
    card.buttons["go"].invoke()
    window.settle()
    assert context.navigation.page == "concepts"
    context.form.edit("concepts", WITH_IMAGES.concepts)
    window.settle()
    assert card.buttons["go"].cget("text") == "Open Sampling"  # the step was ticked off by itself
    for number in range(3):
        (tmp_path / f"{number}.png").touch()
    (tmp_path / "0.txt").write_text("a zog")
    window.open_page("general")
    context.form.edit("concepts", (Concept(path=str(tmp_path)),))
    window.settle()
    window.wait_until(lambda: card.buttons["go"].cget("text") == "Write captions…", "the count")
    assert any("3 images, 1 caption." in str(w.cget("text")) for w in walk(card) if isinstance(w, Text))
    card.buttons["go"].invoke()
    window.settle()
    [captions] = [w for w in window.app.root.winfo_children() if isinstance(w, AnnotateWindow)]
    assert captions.source.folder == tmp_path
    for number in (1, 2):
        (tmp_path / f"{number}.txt").write_text("two zogs")
    context.captions_changed()
    window.wait_until(lambda: card.buttons["go"].cget("text") == "Open Sampling", "the new count")
    captions.close()
    (tmp_path / "1.txt").unlink()
    window.open_page("data")
    window.wait_until(lambda: "skip" in card.buttons, "the count")
    card.buttons["skip"].invoke()
    assert card.buttons["go"].cget("text") == "Open Sampling"
    card.buttons["close"].invoke()
    window.settle()
    assert not card.winfo_ismapped()
    assert context.preferences.now.first_steps == ""
    menu = window.app.shell.side_bar.make_window_menu()
    commands = [n for n in range(menu.index("end") or 0) if menu.type(n) == "command"]
    menu.invoke(next(n for n in commands if "First steps" in str(menu.entrycget(n, "label"))))
    window.settle()
    assert card.winfo_ismapped()


def test_a_run_takes_the_card_away_but_for_its_step_on_the_run_page(open_window: Callable[..., Window]) -> None:
    """It used to ask how to begin, on every page, while a run trained."""
    window = open_window(first_steps="choose")
    card, context = window.app.shell.first_steps, window.app.context
    context.session.begin(RunRequest(context.form.config))
    window.open_page("general")
    assert not card.winfo_ismapped()
    context.preferences.change(first_steps="demo")
    window.settle()
    assert not card.winfo_ismapped()
    window.open_page("run")
    assert card.winfo_ismapped()


@pytest.mark.parametrize(("mebibytes", "has_z_image"), [(8188, True), (6144, False)])
def test_the_first_step_names_the_families_that_fit_the_card(
    mebibytes: int, has_z_image: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = GpuMemory(mebibytes << 20, mebibytes << 20)
    monkeypatch.setattr("modules.system.hardware.gpu_memory", lambda device: memory)
    card = find_card()
    assert card is not None
    assert FAMILIES["sdxl"].label in card.families
    assert (FAMILIES["z_image"].label in card.families) is has_z_image
    text = WAYS["images"].steps[0].instruction(Progress(Config(), Source(), card=card))
    assert f"Your card has {memory.nominal_gb} GB: enough for the presets of {card.families[0]}" in text


def test_of_many_families_the_newest_are_named_and_the_others_counted() -> None:
    card = GraphicsCard(24, tuple(FAMILIES[name].label for name in newest_families()))
    text = WAYS["images"].steps[0].instruction(Progress(Config(), Source(), card=card))
    assert f"{', '.join(card.families[:4])} and {len(card.families) - 4} more." in text
    assert card.families[-1] not in text


def test_without_a_card_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.system.hardware.gpu_memory", lambda device: None)
    assert find_card() is None
    assert "the memory of your card" in WAYS["images"].steps[0].instruction(Progress(Config(), Source()))
