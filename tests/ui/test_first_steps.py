"""The card of a first start: the ways to begin, and the steps that follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modules.config.presets import DEMO, Preset
from modules.config.schema import Config
from modules.data.concept import Concept
from modules.settings.every import Every
from modules.system.hardware import GpuMemory
from modules.system.problem import Problem
from tests.ui.conftest import Window
from tests.ui.driving import walk
from trainer.launch import RunRequest
from trainer.preflight.machine import Machine
from trainer.preflight.presets_here import Offer, RunEstimate
from trainer.preflight.report import Report
from ui.app.catalogue import PAGES
from ui.features.captions.annotate_window import AnnotateWindow
from ui.features.first_steps import looking
from ui.features.first_steps.here import Here
from ui.features.first_steps.images import with_one_sentence
from ui.features.first_steps.model import WAYS, Progress, current_step
from ui.forms.model import Source
from ui.widgets.panel import Text

WRITE, SENTENCE, FOLDER = "Write them for me…", "One sentence for all…", "Choose the folder…"
OF_DEMO = Source(DEMO, Path("demo.json"), "built_in")
OTHER = Source("#sd 1.5 LoRA", Path("lora.json"), "built_in")
WITH_IMAGES = Config.model_validate({"concepts": [{"path": "images"}]})
GB = 10**9
DESKTOP = Machine(None, 32 * GB, 500 * GB, 8, "No GPU was found.")
CARD = Machine(GpuMemory(12 << 30, 11 << 30), 32 * GB, 500 * GB, 8)
LARGE = RunEstimate(download_bytes=0, memory_bytes=22 * GB, step_seconds=60.0, images_per_step=1)
WITH_PROMPT = Config.model_validate({"concepts": [{"path": "images"}], "sampling": {"prompts": [{"prompt": "a cat"}]}})
LONGER = WITH_PROMPT.model_copy(update={"training": WITH_PROMPT.training.model_copy(update={"epochs": 50})})


@pytest.fixture(autouse=True)
def known_computer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every computer be the same, without estimating presets for it."""
    monkeypatch.setattr(looking, "find_machine", lambda: DESKTOP)
    monkeypatch.setattr(looking, "find_offers", lambda _machine, _report: ())
    monkeypatch.setattr(looking, "find_needs", lambda _config, _machine: (None, True))


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
        ("images", Progress(WITH_PROMPT, OTHER, num_images=10, num_captions=10), "Length"),
        ("images", Progress(LONGER, OTHER, num_images=10, num_captions=10), "Start"),
        ("images", Progress(LONGER, OTHER, num_images=10, num_captions=10, length_for=9), "Length"),
        ("images", Progress(WITH_PROMPT, OTHER, num_images=10, num_captions=10, length_for=10), "Start"),
        ("images", Progress(WITH_PROMPT, OTHER, here=Here(CARD, needs=LARGE, fits=False)), "Memory"),
        ("images", Progress(WITH_PROMPT, OTHER, here=Here(DESKTOP, needs=LARGE, fits=False)), "Preset"),
        ("images", Progress(WITH_PROMPT, OTHER, here=Here(DESKTOP, needs=LARGE)), "Start"),
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
        for step in way.steps:
            assert bool(step.action) is not bool(step.page)
            assert step.page in pages or window.app.context.actions[step.action]
    assert not window.app.shell.first_steps.winfo_ismapped()


def test_the_card_leads_through_the_demo_and_stays_away_once_closed(
    open_window: Callable[..., Window], tmp_path: Path
) -> None:
    window = open_window()
    card, context = window.app.shell.first_steps, window.app.context
    home: Any = window.open_page("home")
    assert not card.winfo_ismapped()
    assert {name: home.work.buttons[name].cget("text") for name in WAYS} == {n: way.label for n, way in WAYS.items()}
    home.work.buttons["demo"].invoke()
    window.settle()
    assert context.form.source.name == DEMO
    assert context.preferences.now.first_steps == "demo"
    assert card.buttons["go"].cget("text") == "Start"
    window.open_page("data")
    card.buttons["back"].invoke()
    window.settle()
    assert context.navigation.page == "home"
    home.work.buttons["images"].invoke()
    window.settle()
    assert card.buttons["go"].cget("text") == "All presets…"
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
    window.open_page("output")
    context.form.edit("concepts", (Concept(path=str(tmp_path)),))
    window.settle()
    window.wait_until(lambda: WRITE in card.buttons, "the count")
    assert any("3 images, 1 caption." in str(w.cget("text")) for w in walk(card) if isinstance(w, Text))
    card.buttons[WRITE].invoke()
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


def test_a_run_takes_the_card_away_but_for_its_step_on_the_run_page(open_window: Callable[..., Window]) -> None:
    window = open_window(first_steps="demo")
    card, context = window.app.shell.first_steps, window.app.context
    context.session.begin(RunRequest(context.form.config))
    window.open_page("output")
    assert not card.winfo_ismapped()
    window.open_page("run")
    assert card.winfo_ismapped()


def test_one_sentence_is_the_caption_of_all_images_without_one(
    open_window: Callable[..., Window], tmp_path: Path
) -> None:
    window = open_window(first_steps="images")
    card, context, answers = window.app.shell.first_steps, window.app.context, window.asked.answers
    (tmp_path / "with").mkdir()
    for name in ("1.png", "with/1.png", "with/1.txt"):
        (tmp_path / name).write_bytes(b"a zog")
    concepts = (Concept(path=str(tmp_path)), Concept(path=str(tmp_path / "with")))
    context.form.load(Config(concepts=concepts), OTHER)
    window.wait_until(lambda: SENTENCE in card.buttons, "the count")
    answers["ask_text"] = " "
    card.buttons[SENTENCE].invoke()
    assert context.form.config.concepts == concepts
    answers["ask_text"] = "ohwx "
    card.buttons[SENTENCE].invoke()
    first, second = context.form.config.concepts
    assert (first.caption_source, first.fixed_caption) == ("fixed_text", "a photo of ohwx")
    assert second == concepts[1]
    assert context.form.config.output.trigger_words == "ohwx"
    window.wait_until(lambda: "Use a caption" in card.buttons, "the next step")
    card.buttons["Use a caption"].invoke()
    [prompt] = context.form.config.sampling.prompts
    assert (prompt.prompt, prompt.width_px, prompt.height_px) == ("a photo of ohwx", 512, 512)
    window.wait_until(lambda: "Person" in card.buttons, "the length")
    assert with_one_sentence(Config(concepts=concepts), concepts[:1], "two ohwx cats")[1] == "two ohwx cats"


def test_in_a_low_and_narrow_window_the_buttons_have_a_line_of_their_own(
    open_window: Callable[..., Window], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They covered the title of the step."""
    found = tuple(
        replace(offer(), preset=Preset(f"#a long name of a preset {n}", "s", Path(f"{n}.json"))) for n in range(3)
    )
    monkeypatch.setattr(looking, "find_offers", lambda _machine, _report: found)
    window = open_window(first_steps="images")
    card = window.app.shell.first_steps
    window.app.root.geometry("1024x600")
    window.wait_until(lambda: found[0].preset.name in card.buttons, "the offers")
    window.settle()
    [title] = [w for w in walk(card) if isinstance(w, Text) and "1 of 8" in str(w.cget("text"))]
    assert title.winfo_width() >= title.winfo_reqwidth()
    button = card.buttons[found[0].preset.name]
    assert button.winfo_rooty() >= title.winfo_rooty() + title.winfo_height()
    assert button.winfo_rootx() >= card.winfo_rootx()


def test_the_folder_is_chosen_without_leaving_the_card(open_window: Callable[..., Window], tmp_path: Path) -> None:
    window = open_window(first_steps="images")
    card, context = window.app.shell.first_steps, window.app.context
    (tmp_path / "1.png").touch()
    context.form.load(Config(), OTHER)
    window.wait_until(lambda: FOLDER in card.buttons, "the step")
    window.asked.answers["ask_folders"] = ()
    card.buttons[FOLDER].invoke()
    assert context.form.config.concepts == ()
    window.asked.answers["ask_folders"] = (tmp_path,)
    card.buttons[FOLDER].invoke()
    assert [c.path for c in context.form.config.concepts] == [str(tmp_path)]
    window.wait_until(lambda: WRITE in card.buttons, "the count")


def preset_step(here: Here, source: Source = OF_DEMO) -> tuple[str, list[str]]:
    """Return the instruction of the first step, and the presets that it offers."""
    step, progress = WAYS["images"].steps[0], Progress(Config(), source, here=here)
    return step.instruction(progress), [choice.label for choice in step.choices(progress)]


def offer(**needs: Any) -> Offer:
    return Offer(Preset("#small LoRA", "small", Path("small.json")), "Small", replace(LARGE, **needs))


def test_the_first_step_states_what_the_computer_has_and_offers_what_fits() -> None:
    text, presets = preset_step(Here(CARD, (offer(), offer())))
    assert text.startswith(
        "This computer: a GPU with 12 GB, 32 GB of memory, 500 GB free on the disk. These presets fit"
    )
    assert presets == ["#small LoRA"] * 2
    step = WAYS["images"].steps[0]
    first = step.choices(Progress(Config(), Source(), num_images=40, here=Here(CARD, (offer(download_bytes=2 * GB),))))
    assert first[0].text == "Small: 2.0 GB to download, 22.0 GB of memory, about 2 days for 40 images."
    assert preset_step(Here(CARD))[0].endswith("Looking for the presets that it can train…")
    assert "too little memory" in preset_step(Here(CARD, ()))[0]


def test_without_a_gpu_it_is_named_and_settings_sized_for_one_do_not_pass() -> None:
    text, _ = preset_step(Here(DESKTOP, (offer(),)))
    assert "no GPU, a processor with 8 cores" in text
    assert "This preset runs on it, slowly; the others need a GPU." in text
    here = Here(replace(DESKTOP, why_no_gpu="No driver."), (offer(),), needs=LARGE, fits=False)
    text, _ = preset_step(here, source=OTHER)
    assert text.startswith("These settings are sized for a GPU: without one, about 33 hours for 20 images.")
    assert text.endswith("No driver.")
    memory = WAYS["images"].steps[1].instruction(Progress(Config(), OTHER, here=Here(CARD, needs=LARGE, fits=False)))
    assert memory.startswith("These settings need about 22.0 GB of memory, and the card has 12.")


def test_the_presets_and_the_needs_of_the_settings_are_found_in_the_background(
    open_window: Callable[..., Window], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(looking, "find_needs", lambda config, _machine: (LARGE, config.training.batch_size == 1))
    preset = tmp_path / "small.json"
    found = replace(offer(), preset=Preset("#small", "s", preset))
    preset.write_text('{"darkroom_version": 7, "training": {"batch_size": 2}}')
    monkeypatch.setattr(looking, "find_offers", lambda _machine, _report: (found,))
    window = open_window(first_steps="images")
    card, context = window.app.shell.first_steps, window.app.context

    def texts() -> str:
        return " ".join(str(w.cget("text")) for w in walk(card) if isinstance(w, Text))

    window.wait_until(lambda: "#small" in card.buttons, "the offers")
    card.buttons["#small"].invoke()
    window.wait_until(lambda: "sized for a GPU" in texts(), "the needs")
    assert context.form.source.name == "#small"
    context.form.edit("training.batch_size", 1)
    window.wait_until(lambda: card.buttons["go"].cget("text") == "Open Concepts", "the needs of the new settings")
    for number in range(10):
        (tmp_path / f"{number}.png").touch()
        (tmp_path / f"{number}.txt").write_text("a zog")
    context.form.replace(WITH_PROMPT)
    context.form.edit("concepts", (Concept(path=str(tmp_path)),))
    context.form.edit("sampling.every", Every(n=2, unit="epoch"))
    window.wait_until(lambda: "Person" in card.buttons, "the count")
    assert "1,000 steps, 100 epochs, about 17 hours." in texts()
    card.buttons["Person"].invoke()
    assert (context.form.config.training.epochs, context.form.config.sampling.every.n) == (100, 20)
    window.settle()
    assert card.buttons["go"].cget("text") == "Start"


def test_an_error_of_the_check_before_a_start_is_a_step_of_its_own(ready: Window) -> None:
    card, context, starter = ready.app.shell.first_steps, ready.app.context, ready.app.starter
    context.preferences.change(first_steps="config")
    context.form.load(context.form.config, Source("old", Path("old.json"), "file"))
    ready.open_page("training")
    assert card.buttons["go"].cget("text") == "Start"
    starter.report, starter._report_of = Report((Problem("training.device", "No GPU."),), None), context.form.config
    starter.changed()
    ready.settle()
    assert card.buttons["go"].cget("text") == "Open Model"
