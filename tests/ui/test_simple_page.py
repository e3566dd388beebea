"""The page Train a LoRA: the state of each step, what it offers until it is done, and the view that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modules.config.presets import DEMO, Preset, list_presets
from modules.config.schema import Config
from modules.data.concept import Concept
from modules.settings.edit import replace_value
from modules.settings.every import Every
from modules.system.hardware import GpuMemory
from modules.system.paths import from_root
from tests.builders.configs import laid_over
from tests.builders.images import draw_folder
from tests.builders.shards import draw_shard
from tests.ui.conftest import Window
from trainer.preflight.fit import Fit
from trainer.preflight.machine import Machine
from trainer.preflight.moves import Move
from trainer.preflight.presets_here import Offer, RunEstimate
from trainer.preflight.search import Worth
from ui.features.captions.annotate_window import AnnotateWindow
from ui.features.simple import looking
from ui.features.simple.here import Here
from ui.features.simple.images import CountedImages, count_images, in_all, with_one_sentence
from ui.features.simple.model import FIELDS, STEPS, Progress
from ui.features.simple.page import SimplePage
from ui.forms.model import Source

WRITE, SENTENCE, FOLDER, CAPTION = "Write them for me…", "One sentence for all…", "Choose the folder…", "Use a caption"
OF_DEMO = Source(DEMO, Path("demo.json"), "built_in")
OF_FLOW_DEMO = Source(f"{DEMO} flow", Path("flow.json"), "built_in")
OTHER = Source("#sd 1.5 LoRA", Path("lora.json"), "built_in")
WITH_IMAGES = Config.model_validate({"concepts": [{"path": "images"}]})
WITH_PROMPT = Config.model_validate({"concepts": [{"path": "images"}], "sampling": {"prompts": [{"prompt": "a cat"}]}})
LONG = replace_value(WITH_PROMPT, "training.epochs", 100)
GB = 10**9
DESKTOP = Machine(None, 32 * GB, 500 * GB, 8, "No GPU was found.")
CARD = Machine(GpuMemory(12 << 30, 11 << 30), 32 * GB, 500 * GB, 8)
LARGE = RunEstimate(download_bytes=0, memory_bytes=22 * GB, step_seconds=60.0, images_per_step=1)
TEN: dict[str, Any] = {"counted": CountedImages(10, 10), "samples_per_epoch": 10.0}
BY_TITLE = {step.title: step for step in STEPS}


@pytest.fixture(autouse=True)
def known_computer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every computer be the same, without estimating presets for it."""
    monkeypatch.setattr(looking, "find_machine", lambda: DESKTOP)
    monkeypatch.setattr(looking, "find_offers", lambda _machine, _report: ())
    monkeypatch.setattr(looking, "find_needs", lambda _config, _machine: (None, True))


@pytest.mark.parametrize(
    ("title", "progress", "is_done"),
    [
        ("Base model", Progress(WITH_PROMPT, OF_DEMO, WITH_PROMPT), False),  # that of the demo is not the user's
        ("Base model", Progress(WITH_IMAGES, OF_DEMO), False),  # nor is it one for images that are added to it
        ("Base model", Progress(replace_value(WITH_IMAGES, "model.base_model", "mine.safetensors"), OF_DEMO), True),
        ("Base model", Progress(Config(), Source()), False),
        ("Base model", Progress(replace_value(Config(), "model.base_model", "mine.safetensors"), Source()), True),
        ("Base model", Progress(Config(), OTHER), True),
        ("Base model", Progress(Config(), OTHER, here=Here(DESKTOP, needs=LARGE, fits=False)), False),
        ("Base model", Progress(Config(), OTHER, here=Here(CARD, needs=LARGE, fits=False)), True),
        ("Images", Progress(WITH_IMAGES, OF_DEMO, WITH_IMAGES), False),
        ("Images", Progress(WITH_IMAGES, OF_FLOW_DEMO, WITH_IMAGES), False),
        ("Images", Progress(WITH_IMAGES, OTHER, counted=CountedImages(10, 9)), False),
        ("Images", Progress(WITH_IMAGES, OTHER, counted=CountedImages(10, 10)), True),
        ("Length", Progress(WITH_IMAGES, OTHER), False),
        ("Length", Progress(WITH_IMAGES, OTHER, WITH_IMAGES, **TEN), False),
        ("Length", Progress(LONG, OTHER, LONG, **TEN), True),  # the usual one for a person
        ("Length", Progress(replace_value(LONG, "training.epochs", 77), OTHER, LONG, **TEN), True),
        ("Memory", Progress(LONG, OTHER), False),
        ("Memory", Progress(LONG, OTHER, here=Here(CARD, needs=LARGE, fits=False)), False),
        ("Memory", Progress(LONG, OTHER, here=Here(DESKTOP, needs=LARGE)), True),
        ("Samples", Progress(WITH_PROMPT, OF_DEMO, WITH_PROMPT), False),
        ("Samples", Progress(WITH_PROMPT, OTHER), True),
        ("LoRA", Progress(replace_value(Config(), "training.trains", "embedding"), OTHER), False),
        ("LoRA", Progress(Config(), OTHER), True),
    ],
)
def test_a_step_is_ticked_off_when_it_is_done(title: str, progress: Progress, is_done: bool) -> None:
    assert BY_TITLE[title].is_done(progress) is is_done


def offer(**needs: Any) -> Offer:
    return Offer(Preset("#small LoRA", "small", Path("small.json")), "Small", replace(LARGE, **needs))


def test_the_base_model_comes_with_the_computer_and_the_presets_that_fit_it() -> None:
    assert [step.title for step in STEPS] == ["Base model", "Images", "Length", "Memory", "Samples", "LoRA"]

    def model_of(here: Here, source: Source = OF_DEMO, num_images: int = 0) -> tuple[str, list[str]]:
        step, progress = STEPS[0], Progress(Config(), source, here=here, counted=CountedImages(num_images))
        return step.describe(progress), [choice.text for choice in step.choices(progress)]

    text, presets = model_of(Here(CARD, (offer(), offer(download_bytes=2 * GB))), num_images=40)
    assert text.startswith(
        "This computer: a GPU with 12 GB, 32 GB of memory, 500 GB free on the disk. These presets fit"
    )
    assert presets[1] == "Small: 2.0 GB to download, 22.0 GB of memory, about 2 days for 40 images."
    assert model_of(Here(CARD))[0].endswith("Looking for the presets that it can train…")
    assert "too little memory" in model_of(Here(CARD, ()))[0]
    with_images = Progress(WITH_IMAGES, OF_DEMO, here=Here(CARD, (offer(),)))
    assert "a toy for 64 px" in STEPS[0].describe(with_images)
    text, _ = model_of(Here(replace(DESKTOP, why_no_gpu="No driver."), (offer(),)))
    assert "no GPU, a processor with 8 cores" in text
    assert "This preset runs on it, slowly; the others need a GPU. No driver." in text
    loaded = model_of(Here(CARD, (), needs=replace(LARGE, download_bytes=2 * GB)), OTHER)[0]
    assert loaded == "Preset #sd 1.5 LoRA, for Stable Diffusion 1 and 2. 2.0 GB to download first."


def test_length_and_memory_are_stated_with_their_reasons() -> None:
    def text(title: str, progress: Progress) -> str:
        return BY_TITLE[title].describe(progress)

    small = Here(DESKTOP, needs=replace(LARGE, memory_bytes=2 * GB))
    usual = text("Length", Progress(LONG, OTHER, LONG, here=small, **TEN))
    assert usual.startswith("1,000 steps, about 17 hours: each image is seen 100 times. Usual for a person. A face")
    short = Progress(replace_value(LONG, "training.epochs", 3), OTHER, **TEN)
    assert "too few to learn a subject" in text("Length", short)
    assert BY_TITLE["Length"].is_wrong(short)
    long = Progress(replace_value(LONG, "training.epochs", 9000), OTHER, **TEN)
    assert "memorizes the images" in text("Length", long)
    open_length = Progress(WITH_IMAGES, OTHER, WITH_IMAGES, **TEN)
    assert text("Length", open_length).endswith("What do the images show?")
    assert text("Memory", Progress(LONG, OTHER, here=small)).startswith("At least 2.0 GB of this computer's 32 GB.")
    tiny = Progress(LONG, OTHER, here=replace(small, needs=replace(LARGE, memory_bytes=17_000_000)))
    assert text("Memory", tiny).startswith("At least 17 MB of")
    misfit = Progress(LONG, OTHER, here=Here(CARD, needs=LARGE, fits=False))
    assert text("Memory", misfit) == "These settings need about 22.0 GB of memory, and the card has 12."
    assert BY_TITLE["Memory"].is_wrong(misfit)
    assert [choice.value for choice in BY_TITLE["Memory"].choices(misfit)] == ["fit"]
    assert BY_TITLE["Memory"].choices(Progress(LONG, OTHER, here=small)) == ()
    without_gpu = text("Memory", Progress(LONG, OTHER, here=Here(DESKTOP, needs=LARGE, fits=False)))
    slow = Progress(LONG, OTHER, here=Here(DESKTOP, needs=LARGE, fits=False))
    assert BY_TITLE["Memory"].choices(slow) == (), "other settings do not make a processor a card"
    assert without_gpu == "These settings are sized for a GPU: without one, about 33 hours for 20 images."


def test_samples_at_the_end_alone_are_not_called_off() -> None:
    config = replace_value(WITH_PROMPT, "sampling.every", Every(unit="never"))
    for at_end, when in ((True, "Samples: at the end."), (False, "Samples: never.")):
        other = replace_value(replace_value(config, "sampling.at_start", False), "sampling.at_end", at_end)
        assert BY_TITLE["Samples"].describe(Progress(other, OTHER)) == f"a cat. {when}"


def smaller_batch(config: Config) -> Fit:
    values = (("training.batch_size", 1),)
    change = Worth(Move("training.batch_size", "a smaller batch", values), GB, 1.0)
    fitted = replace_value(config, *values[0])
    return Fit(fitted, (change,), 6 * GB, 6 * GB, 7 * GB, 5 * GB, 1.0, fits=True)


def test_from_a_folder_to_a_length_without_leaving_the_page(
    open_window: Callable[..., Window], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    preset = tmp_path / "small.json"
    preset.write_text('{"darkroom_version": 7, "training": {"batch_size": 2}}')
    found = replace(offer(), preset=Preset("#small", "s", preset))
    monkeypatch.setattr("ui.forms.card_fit.find_fit", smaller_batch)
    monkeypatch.setattr(looking, "find_offers", lambda _machine, _report: (found,))
    monkeypatch.setattr(looking, "find_needs", lambda _config, _machine: (LARGE, True))
    window = open_window()
    context, answers = window.app.context, window.asked.answers
    home: Any = window.open_page("home")
    home.work.buttons["images"].invoke()
    window.settle()
    assert context.navigation.page == "simple"
    page: Any = window.app.shell.pages["simple"]
    assert isinstance(page, SimplePage)
    cards = page.cards
    window.wait_until(lambda: "#small" in cards["Base model"].buttons, "the offers")
    cards["Base model"].buttons["#small"].invoke()
    window.wait_until(lambda: context.form.config.training.batch_size == 1, "the fitted settings")
    bar = window.app.shell.bottom_bar
    sentence = "Fitted to the 6.0 GB that are free on the card now: a smaller batch. Ctrl+Z undoes it."
    window.wait_until(lambda: bar.detail.cget("text") == sentence, "the sentence about them")
    context.form.undo()
    assert context.form.config.training.batch_size == 2
    window.settle()
    assert context.form.source.name == "#small"
    assert cards["Base model"].sign.cget("text") == "✓"
    assert cards["Images"].sign.cget("text") == "2"
    images = tmp_path / "images"
    images.mkdir()
    for number in range(10):
        (images / f"{number}.png").touch()
    answers["ask_folders"] = ()
    cards["Images"].buttons[FOLDER].invoke()
    assert context.form.config.concepts == ()
    answers["ask_folders"] = (images,)
    cards["Images"].buttons[FOLDER].invoke()
    window.wait_until(lambda: SENTENCE in cards["Images"].buttons, "the count")
    assert "10 images, 0 captions." in cards["Images"].state.cget("text")
    cards["Images"].buttons[WRITE].invoke()
    window.settle()
    [captions] = [w for w in window.app.root.winfo_children() if isinstance(w, AnnotateWindow)]
    assert captions.source.folder == images
    captions.close()
    answers["ask_text"] = " "
    cards["Images"].buttons[SENTENCE].invoke()
    answers["ask_text"] = "ohwx "
    cards["Images"].buttons[SENTENCE].invoke()
    [concept] = context.form.config.concepts
    assert (concept.caption_source, concept.fixed_caption) == ("fixed_text", "a photo of ohwx")
    assert context.form.config.output.trigger_words == "ohwx"
    assert [p.prompt for p in context.form.config.sampling.prompts] == ["a photo of ohwx"]
    context.form.edit("sampling.prompts", ())
    window.wait_until(lambda: CAPTION in cards["Samples"].buttons, "the captions")
    cards["Samples"].buttons[CAPTION].invoke()
    [prompt] = context.form.config.sampling.prompts
    assert (prompt.prompt, prompt.width_px, prompt.height_px) == ("a photo of ohwx", 512, 512)
    context.form.edit("sampling.every", Every(n=2, unit="epoch"))
    before = context.form.config.training.epochs
    cards["Length"].buttons["Person"].invoke()
    window.settle()
    epochs = context.form.config.training.epochs
    assert (epochs, context.form.config.sampling.every.n) == (100, max(1, round(2 * epochs / before)))
    assert {title for title, card in cards.items() if card.sign.cget("text") == "✓"} == set(cards)


def test_presets_that_come_later_do_not_move_what_is_below(window: Window) -> None:
    """The button for the folder slid away from under the pointer when they came."""
    page: Any = window.open_page("simple")
    page.frame.is_shown = False  # it would show what it finds itself
    window.settle()
    card = page.cards["Base model"]

    def height_with(here: Here, config: Config = Config()) -> int:  # noqa: B008 (frozen)
        card.follow(Progress(config, OF_DEMO, here=here), 1, lambda _choice: None)
        window.settle()
        return card.card.winfo_reqheight()

    looking_for_them = height_with(Here(CARD))
    found = height_with(Here(CARD, (offer(), replace(offer(), preset=Preset("#other", "o", Path("other.json"))))))
    assert found == looking_for_them
    assert height_with(Here(DESKTOP, ())) < found
    for machine in (DESKTOP, CARD):  # fewer than may come
        looking_for_them = height_with(Here(machine))
        assert height_with(Here(machine, (offer(),))) == looking_for_them, machine
    assert height_with(Here(CARD, (offer(),)), WITH_IMAGES) < looking_for_them, "after the next change there is no gap"


def test_images_in_subfolders_are_not_called_unused_where_they_are_used(tmp_path: Path) -> None:
    """A single image was said to be in a subfolder, and masks were offered as images."""
    folder = draw_folder(tmp_path / "cats", sizes=[(64, 64)], captions=["a cat"])
    assert count_images(Concept(path=str(folder / "000.png"))).in_subfolders == 0
    below = draw_folder(folder / "garden", sizes=[(64, 64)] * 2)
    concept = Concept(path=str(folder), excluded="garden/000.png")
    assert count_images(concept, (concept,)) == CountedImages(1, 1, 0, "a cat", in_subfolders=1)
    assert count_images(concept, (concept, Concept(path=str(below)))).in_subfolders == 0
    assert count_images(replace_value(concept, "include_subfolders", True)).in_subfolders == 0
    for name in ("masks_folder", "conditioning_folder"):
        assert count_images(replace_value(concept, f"image.{name}", str(below))).in_subfolders == 0
    shards = tmp_path / "shards"
    draw_folder(shards / "previews", sizes=[(64, 64)])
    draw_shard(shards / "one.tar", sizes=[(64, 64)])
    assert count_images(Concept(path=str(shards))) == CountedImages(), "its images are in the archive"


def test_a_tree_of_folders_is_not_listed_to_its_end_and_a_count_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a concept may be a whole disk, or far away."""
    monkeypatch.setattr("ui.features.simple.images._MAX_BELOW", 3)
    folder = draw_folder(tmp_path / "disk", sizes=[(8, 8)], captions=["a cat"])
    for name in ("b", "c"):
        draw_folder(folder / name, sizes=[(8, 8)] * 2)
    concept = Concept(path=str(folder))
    assert count_images(concept) == CountedImages(1, 1, 0, "a cat", in_subfolders=3, is_part=True)
    for number in range(20):
        (folder / "a" / str(number)).mkdir(parents=True)
    assert count_images(concept) == CountedImages(1, 1, 0, "a cat")
    assert count_images(replace_value(concept, "include_subfolders", True)).images == 5
    for num_checks in range(4):
        checks = [None] * num_checks
        with pytest.raises(IndexError):
            count_images(concept, check=checks.pop)


def test_a_folder_that_is_not_there_is_no_step_that_is_done(tmp_path: Path) -> None:
    """A config of another computer had a tick at its images."""
    gone, hub = Concept(path=str(tmp_path / "cats")), Concept(path="hf://owner/dataset")
    (tmp_path / "dogs").mkdir()
    there = Concept(path=str(tmp_path / "dogs"))
    counted = in_all([count_images(concept) for concept in (gone, hub, there)])
    assert counted == CountedImages(missing=("cats",))
    progress = Progress(replace_value(Config(), "concepts", (gone, there)), OTHER, counted=counted)
    step = BY_TITLE["Images"]
    assert step.describe(progress) == "cats: its folder was not found, or cannot be read. See Images and captions."
    assert step.is_wrong(progress)
    assert not step.is_done(progress)


def test_one_image_in_too_many_subfolders_is_named_as_one() -> None:
    concepts = (Concept(path="/images/cats"),)
    progress = Progress(replace_value(Config(), "concepts", concepts), OTHER, counted=CountedImages(in_subfolders=1))
    describe = BY_TITLE["Images"].describe
    assert describe(progress) == "cats: the only image is in a subfolder."
    may_be_more = replace(progress, counted=replace(progress.counted, is_part=True))
    assert describe(may_be_more) == "cats: at least one image is in a subfolder."


def test_images_that_are_added_to_the_demo_are_trained_alone(window: Window, tmp_path: Path) -> None:
    """A newcomer's dog was trained with the zogs, sampled as zogs and saved as zog.safetensors."""
    form = window.app.context.form
    window.app.context.documents.open_demo()
    page: Any = window.open_page("simple")
    folder = tmp_path / "Benno - the dog (2026)"
    draw_folder(folder / "at the sea", sizes=[(64, 64)] * 2)
    window.asked.answers["ask_folders"] = (folder,)
    window.wait_until(lambda: FOLDER in page.cards["Images"].buttons, "the choice")
    page.cards["Images"].buttons[FOLDER].invoke()
    [concept] = form.config.concepts
    assert from_root(concept.path) == folder
    assert form.config.sampling.prompts == ()
    assert form.config.validation == Config().validation
    assert form.config.output.destination == "models/Benno-the-dog-2026.safetensors"
    assert form.config.general.workspace_dir == Config().general.workspace_dir
    card = page.cards["Images"]
    window.wait_until(lambda: "Use subfolders" in card.buttons, "the images in the subfolder, which were left out")
    assert (card.sign.cget("text"), card.state.cget("text")) == ("2", f"{folder.name}: all 2 images are in subfolders.")
    draw_folder(folder, sizes=[(64, 64)])
    window.app.context.captions_changed()
    left_out = f"{folder.name}: 1 image, 1 caption. 2 more are in subfolders, and not used."
    window.wait_until(lambda: card.state.cget("text") == left_out, "all counts")
    (folder / "000.txt").unlink()
    window.app.context.captions_changed()
    window.wait_until(lambda: "Use subfolders" in card.buttons, "the choice")
    card.buttons["Use subfolders"].invoke()
    window.wait_until(lambda: "3 images, 2 captions." in card.state.cget("text"), "those in the subfolder")
    assert "subfolders" not in card.state.cget("text")
    form.edit("output.destination", "mine.safetensors")
    window.asked.answers["ask_folders"] = (draw_folder(tmp_path / "more", sizes=[(64, 64)]),)
    page._add_folders()
    assert len(form.config.concepts) == 2
    assert form.config.output.destination == "mine.safetensors"


def test_the_result_follows_another_folder_until_it_is_named(window: Window, tmp_path: Path) -> None:
    form = window.app.context.form
    window.app.context.documents.open_demo()
    page: Any = window.open_page("simple")
    first, *others = (draw_folder(tmp_path / name, sizes=[(64, 64)]) for name in ("first", "second", "third"))
    window.asked.answers["ask_folders"] = (first,)
    page._add_folders()
    for folder, typed, name in ((others[0], "", "second"), (others[1], "models/mine.safetensors", "mine")):
        if typed:
            form.edit("output.destination", typed)
        form.edit("concepts", (Concept(path=str(folder)),))
        window.settle()
        assert form.config.output.destination == f"models/{name}.safetensors"


def test_captions_that_were_written_elsewhere_are_counted_again(
    open_window: Callable[..., Window], tmp_path: Path
) -> None:
    window = open_window()
    context = window.app.context
    for name in ("1.png", "2.png", "1.txt"):
        (tmp_path / name).write_bytes(b"a zog")
    context.form.load(Config(concepts=(Concept(path=str(tmp_path)),)), OTHER)
    page: Any = window.open_page("simple")
    card = page.cards["Images"]
    window.wait_until(lambda: "2 images, 1 caption." in card.state.cget("text"), "the count")
    (tmp_path / "2.txt").write_text("two zogs")
    context.captions_changed()
    window.wait_until(lambda: card.sign.cget("text") == "✓", "the new count")
    with_caption, without = Concept(path="a"), Concept(path="b")
    config, text = with_one_sentence(Config(concepts=(with_caption, without)), (without,), "two ohwx cats")
    assert text == "two ohwx cats"
    assert config.concepts[0] == with_caption
    named, _ = with_one_sentence(config, (), "be/lla", default_name=config.output.destination)
    assert Path(named.output.destination).name == "bella.safetensors"
    mine = replace_value(config, "output.destination", "mine.safetensors")
    kept, _ = with_one_sentence(mine, (), "bella", default_name=config.output.destination)
    assert kept.output.destination == "mine.safetensors"


def test_the_steps_are_those_of_the_run(open_window: Callable[..., Window], tmp_path: Path) -> None:
    """Images of different sizes are in batches of their own: 2 of one size and 1 of another are 2 steps of 2 images."""
    window = open_window()
    draw_folder(tmp_path, sizes=[(64, 64), (64, 64), (96, 64)])
    config = laid_over(
        Config(concepts=(Concept(path=str(tmp_path)),)),
        {"training": {"epochs": 10, "batch_size": 2}, "data": {"resolution_px": [64]}},
    )
    window.app.context.form.load(config, OTHER)
    page: Any = window.open_page("simple")
    window.wait_until(lambda: page._look.steps_per_epoch == 2, "the sizes")
    assert page.cards["Length"].state.cget("text").startswith("20 steps")


def test_the_page_has_the_fields_of_other_pages_and_counts_what_it_does_not_show(window: Window) -> None:
    app = window.app
    app.form.load(Config(), Source("mine"))
    app.form.edit("training.batch_size", 3)
    page: Any = window.open_page("simple")
    shown = {row.record.path for row in page.form_view.rows() if row.is_shown}
    assert {*FIELDS, "adapter.rank"} <= shown
    assert page.hidden.cget("text").startswith("1 setting of this config")
    navigation, message = app.context.navigation, app.shell.bottom_bar.detail
    app.context.preferences.change(is_simple=True)
    for path in ("training.epochs", "adapter.alpha"):
        navigation.open("home")
        assert navigation.go_to(path)
        assert navigation.page == "simple", "the setting is there"
    for path in ("adapter.dropout", "adapter.dtype"):  # under other headings, which the page does not have
        navigation.open("home")
        assert navigation.go_to(path)
        assert navigation.page == "training"
    assert navigation.go_to("training.batch_size")
    window.settle()
    assert navigation.page == "training"
    assert "full view" in message.cget("text")
    navigation.open("simple")
    app.form.edit("training.epochs", 7)
    page.show_button.invoke()
    window.settle()
    assert app.context.navigation.page == "training"
    assert (app.form.config.training.batch_size, app.form.config.training.epochs) == (3, 7)


def test_an_editing_model_asks_for_the_images_before_the_edit(
    open_window: Callable[..., Window], tmp_path: Path
) -> None:
    window = open_window()
    after, before = (draw_folder(tmp_path / name, sizes=[(64, 64)] * 2, captions=["a"]) for name in ("after", "before"))
    kontext = next(p for p in list_presets() if "kontext" in p.name).load().config
    window.app.context.form.load(replace_value(kontext, "concepts", (Concept(path=str(after)),)), OTHER)
    page: Any = window.open_page("simple")
    card = page.cards["Images"]
    window.wait_until(lambda: "2 captions, 0 reference images." in card.state.cget("text"), "the count")
    window.asked.answers["ask_folder"] = before
    card.buttons["Reference folder…"].invoke()
    window.wait_until(lambda: card.sign.cget("text") == "✓", "the references")
    assert window.app.form.config.concepts[0].image.conditioning_folder == str(before)
