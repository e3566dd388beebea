"""Every page with every field on the screen: values, edits, invalid entries."""

from __future__ import annotations

import json
import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import load_file, save_file
from modules.config.presets import Preset, list_presets
from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.settings.field import records_of
from tests.ui.conftest import Window
from tests.ui.driving import (
    change,
    expected,
    fill,
    flip,
    inside,
    main_buttons,
    pick,
    shown_by,
    texts_in,
    type_into,
    walk,
)
from tests.ui.made_up import TeaConfig
from ui.app.catalogue import PAGES, page_named
from ui.forms.fields import Row
from ui.forms.group_card import reset_menu
from ui.forms.layout import FormView
from ui.forms.model import Source
from ui.forms.setting_pages import TOP_BAR
from ui.widgets.controls import Choice, Switch
from ui.widgets.entry import Entry
from ui.widgets.notices import Notice, Reply
from ui.widgets.panel import Text, focused_widget

FORM_PAGES = (
    "model",
    "data",
    "training",
    "rewards",
    "sampling",
    "output",
    "embeddings",
)
# One per family and training method, and rare ones; the unit tests load and check all presets.
PRESETS = [
    p
    for p in list_presets()
    if p.name
    in (
        "#demo",
        "#sd 1.5 LoRA with validation",
        "#sd 2.1 fine-tune 8 GB",
        "#sdxl 1.0 fine-tune 12 GB",
        "#sdxl v-prediction LoRA",
    )
]


def form_of(window: Window, key: str) -> FormView:
    page: Any = window.open_page(key)
    form_view: FormView = page.form_view
    return form_view


def choose_view(window: Window, name: str) -> None:
    window.app.shell.side_bar.views[name].event_generate("<Button-1>")
    window.settle()


@pytest.fixture
def advanced(window: Window) -> Window:
    choose_view(window, "All")
    return window


def test_the_tested_presets_exist() -> None:
    assert len(PRESETS) == 5


@pytest.mark.full
def test_each_preset_on_every_page_saved_and_loaded(window: Window, tmp_path: Path) -> None:
    for preset in PRESETS:
        is_shown_on_every_page_saved_and_loaded(window, tmp_path, preset)


def is_shown_on_every_page_saved_and_loaded(window: Window, folder: Path, preset: Preset) -> None:
    window.app.context.documents.open_preset(preset)
    for page in PAGES:
        window.open_page(page.key)
        if page.key in FORM_PAGES:
            for row in form_of(window, page.key).rows():
                assert shown_by(row) == expected(row.record, window.app.form.value(row.record.path)), row.record.path
    config = window.app.form.config
    assert config == preset.load().config
    save_file(config, folder / "copy.json")
    assert load_file(folder / "copy.json").config == config


@pytest.mark.daily(3)
@pytest.mark.parametrize("key", FORM_PAGES)
def test_every_field_shows_its_value_and_accepts_an_edit(advanced: Window, key: str) -> None:
    form, view = advanced.app.form, form_of(advanced, key)
    paths = [row.record.path for row in view.rows()]
    assert paths
    for path in paths:
        row = view.reveal(path)
        assert row is not None
        advanced.app.root.update()
        before = form.config
        assert shown_by(row) == expected(row.record, form.value(path)), path
        wanted = change(row)
        if wanted is None:  # a choice of one
            continue
        now = form.value(path)
        assert (now.name if row.record.kind == "section" else now) == wanted, path
        assert form.draft(path) is None, path
        advanced.settle()
        form.undo()
        while form.config != before:
            assert form.undo(), path
        advanced.settle()


def test_every_field_of_the_config_has_a_row_somewhere(advanced: Window) -> None:
    rows = {row.record.path for key in FORM_PAGES for row in form_of(advanced, key).rows()}
    wanted = {r.path for r in records_of(Config) if r.kind not in ("list", "map")}
    assert wanted - {*TOP_BAR} <= rows
    assert rows.isdisjoint(TOP_BAR)
    assert {"parts.unet.train", "parts.text_encoder.learning_rate", "parts.vae.dtype"} <= rows
    assert "training.optimizer.weight_decay" in rows


def test_typing_with_real_keys_reaches_the_config(window: Window) -> None:
    row = form_of(window, "training").reveal("training.learning_rate")
    assert row is not None
    type_into(inside(row.control.frame, Entry), "0.0003")
    assert window.app.form.config.training.learning_rate == 0.0003
    assert window.app.form.is_changed
    window.settle()
    assert window.app.shell.top_bar.differs_link.cget("text") == "1 change"


def test_an_invalid_entry_is_marked_and_explained(window: Window) -> None:
    row = form_of(window, "training").reveal("training.batch_size")
    assert row is not None
    entry = inside(row.control.frame, Entry)
    border = entry.cget("border_color")
    fill(entry, "0")
    window.settle()
    theme = window.app.theme
    assert entry.cget("border_color") == theme.pair("error") != border
    assert entry.tk_entry.get() == "0"
    assert window.app.form.config.training.batch_size == 1
    reasons = [w.cget("text") for w in walk(row.control.frame.master) if isinstance(w, Text)]
    assert "0 is out of range. Allowed: from 1 to 4,096 images." in reasons
    assert "Invalid: 0 is out of range" in row.tip()
    assert "!" in texts_in(window.app.shell.side_bar.entries["training"])
    fill(entry, "2")
    window.settle()
    assert entry.cget("border_color") != theme.pair("error")
    assert "!" not in texts_in(window.app.shell.side_bar.entries["training"])
    assert window.app.form.config.training.batch_size == 2


def test_switching_the_optimizer_shows_its_own_fields(advanced: Window) -> None:
    view = form_of(advanced, "training")
    paths = {row.record.path for row in view.rows()}
    assert "training.optimizer.beta2" in paths
    row = next(r for r in view.rows() if r.record.path == "training.optimizer")
    pick(inside(row.control.frame, Choice), "adafactor")
    advanced.settle()
    paths = {row.record.path for row in view.rows()}
    assert "training.optimizer.beta2" not in paths
    assert {"training.optimizer.beta2_decay", "training.optimizer.weight_decay"} <= paths
    advanced.app.form.undo()
    advanced.settle()
    assert "training.optimizer.beta2" in {row.record.path for row in view.rows()}


def test_the_schedule_too(advanced: Window) -> None:
    view = form_of(advanced, "training")
    row = next(r for r in view.rows() if r.record.path == "training.schedule")
    pick(inside(row.control.frame, Choice), "cosine")
    advanced.settle()
    assert "training.schedule.min_factor" in {row.record.path for row in view.rows() if row.is_shown}


def test_an_irrelevant_field_is_hidden(window: Window) -> None:
    view = form_of(window, "training")
    rows = {row.record.path: row for row in view.rows()}
    assert not rows["training.loss.gamma"].is_shown
    pick(inside(rows["training.loss.weighting"].control.frame, Choice), "min_snr")
    window.settle()
    assert rows["training.loss.gamma"].is_shown
    assert rows["training.loss.gamma"].control.frame.winfo_ismapped()
    pick(inside(rows["training.loss.weighting"].control.frame, Choice), "none")
    window.settle()
    assert not rows["training.loss.gamma"].control.frame.winfo_ismapped()


def test_the_switch_shows_the_advanced_fields(window: Window) -> None:
    view = form_of(window, "training")
    shown = {row.record.path for row in view.rows() if row.is_shown}
    assert "general.deterministic" not in shown
    choose_view(window, "All")
    assert "general.deterministic" in {row.record.path for row in view.rows() if row.is_shown}
    choose_view(window, "Usual")
    assert {row.record.path for row in view.rows() if row.is_shown} == shown


def test_an_advanced_field_that_was_changed_is_not_hidden(window: Window) -> None:
    window.app.form.edit("general.deterministic", True)
    view = form_of(window, "training")
    row = next(r for r in view.rows() if r.record.path == "general.deterministic")
    assert row.is_shown
    flip(inside(row.control.frame, Switch))
    window.settle()
    assert row.is_shown  # stays visible while it is edited


def test_going_to_a_field_opens_its_page_and_focuses_it(window: Window) -> None:
    window.app.root.focus_force()
    assert window.app.context.navigation.go_to("general.num_threads")
    window.settle()
    page: Any = window.app.shell.pages["training"]
    row = next(r for r in page.form_view.rows() if r.record.path == "general.num_threads")
    assert row.is_shown
    assert focused_widget(window.app.root) is inside(row.control.frame, Entry).tk_entry
    frame = row.control.frame
    top = frame.winfo_rooty() - page.scroll.canvas.winfo_rooty()
    assert 0 <= top <= page.scroll.canvas.winfo_height() - frame.winfo_height()
    assert not window.app.context.navigation.go_to("nowhere.at.all")


def test_the_label_resets_to_the_loaded_value_and_to_the_default(window: Window) -> None:
    form = window.app.form
    form.load(Config(training={"epochs": 5}), Source("five"))  # type: ignore[arg-type]
    row = form_of(window, "training").reveal("training.epochs")
    assert row is not None
    fill(inside(row.control.frame, Entry), "9")
    menu = reset_menu(row.menu_target, window.app.context, row.record)
    assert "Reset to the loaded value: 5" in menu.entrycget(0, "label")
    menu.invoke(0)
    assert form.config.training.epochs == 5
    reset_menu(row.menu_target, window.app.context, row.record).invoke(1)
    assert form.config.training.epochs == 10
    assert shown_by(row) == "10"


def test_a_tooltip_shows_help_range_and_default(window: Window) -> None:
    row = form_of(window, "training").reveal("training.batch_size")
    assert row is not None
    tip = row.tip()
    for words in (
        row.record.label,
        row.record.setting.help,
        "Range: from 1 to 4,096 images",
        "Default: 1 image",
    ):
        assert words in tip
    fill(inside(row.control.frame, Entry), "3")
    assert "As loaded: 1 image" in row.tip()


def test_an_empty_entry_shows_a_placeholder(window: Window) -> None:
    row = form_of(window, "model").reveal("parts.unet.learning_rate")
    assert row is not None
    window.app.root.focus_force()
    window.settle()
    text = row.record.setting.empty_means
    (hint,) = [w for w in walk(row.control.frame) if isinstance(w, Text) and w.cget("text") == text]
    assert hint.winfo_ismapped()
    fill(inside(row.control.frame, Entry), "0.5")
    window.settle()
    assert not hint.winfo_ismapped()
    fill(inside(row.control.frame, Entry), "")
    assert window.app.form.value("parts.unet.learning_rate") is None


def test_a_path_is_browsed_for(window: Window, tmp_path: Path) -> None:
    row = form_of(window, "output").reveal("general.workspace_dir")
    assert row is not None
    window.asked.answers["ask_folder"] = tmp_path
    button = next(w for w in walk(row.control.frame) if type(w).__name__ == "Button")
    button.invoke()  # type: ignore[attr-defined]
    assert window.app.form.config.general.workspace_dir == str(tmp_path)
    assert shown_by(row) == str(tmp_path)


def test_the_form_of_a_made_up_section(open_window: Callable[..., Window]) -> None:
    window = open_window()
    window.app.form.load(TeaConfig(), Source("tea"))
    choose_view(window, "All")
    view = form_of(window, "training")
    tea = [row for row in view.rows() if row.record.path.startswith("tea.")]
    assert {r.record.kind for r in tea} == {"int", "float", "bool", "text", "choice", "int_list", "every", "section"}
    for row in tea:
        if row.record.path.count(".") == 1:
            assert shown_by(row) == expected(row.record, window.app.form.value(row.record.path))
            assert change(row) is not None
            window.settle()
    config: Any = window.app.form.config
    assert (config.tea.strength, config.tea.has_milk, config.tea.flavour) == (5, True, "sour")
    assert config.tea.brewing.name == "fast"
    assert "tea.brewing.hurry" in {row.record.path for row in view.rows()}
    titles = [card.group.title for card in view.cards]
    assert titles[-2:] == ["Pot", "Cup"]


def test_all_columns_at_any_width_and_nothing_is_clipped(window: Window) -> None:
    root = window.app.root
    for width, columns in ((1100, 2), (1600, 3), (1060, 2)):
        root.geometry(f"{width}x740+0+0")
        window.wait_until(lambda width=width: root.winfo_width() == width)  # type: ignore[misc]
        view = form_of(window, "training")
        window.settle()
        lefts = {card.card.winfo_x() for card in view.cards if card.card.winfo_ismapped()}
        assert len(lefts) == columns, width
        for row in view.rows():
            if row.is_shown:
                for widget in row.tip_targets:
                    assert widget.winfo_width() >= min(widget.winfo_reqwidth(), 60)
                    right = widget.winfo_rootx() + widget.winfo_width()
                    assert right <= view.winfo_rootx() + view.winfo_width(), row.record.path


def test_every_page_has_one_orange_button_also_beside_a_notice_and_turns_light(window: Window) -> None:
    window.app.context.notices.show(Notice("a", "A run ended.", (Reply("Resume", lambda: None),)))
    found = {}
    for page in PAGES:
        window.open_page(page.key)
        found[page.key] = main_buttons(window.app.root)
    special = {
        "home": ["Train my images"],
        "concepts": ["Add folders…"],
        "sample": ["Generate"],
        "tools": found["tools"],
        "queue": found["queue"],
    }
    assert found == {page.key: ["Start"] for page in PAGES} | special
    assert len(found["tools"]) == len(found["queue"]) == 1
    for mode in ("light", "dark"):
        menu = window.app.shell.side_bar.make_window_menu()
        menu.invoke(1 if window.app.theme.mode == "dark" else 0)
        window.settle()
        assert window.app.theme.mode == mode
        assert window.app.shell.cget("background") == window.app.theme.colour("window")
        assert window.app.preferences.now.appearance == mode


def _bottom(row: Row) -> int:
    return _bottom_of(row.control.frame)


def _bottom_of(widget: tk.Misc) -> int:
    return widget.winfo_rooty() + widget.winfo_height()


def test_the_wheel_scrolls_and_tab_brings_into_view(advanced: Window) -> None:
    advanced.app.root.geometry("1060x640+0+0")
    page: Any = advanced.open_page("training")
    advanced.settle()
    canvas = page.scroll.canvas
    assert canvas.yview() != (0.0, 1.0)
    page.form_view.event_generate("<Button-5>")
    advanced.settle()
    assert canvas.yview()[0] > 0
    for _ in range(3):
        page.form_view.event_generate("<Button-4>")
    assert canvas.yview()[0] == 0
    advanced.settle()
    low = [row for row in page.form_view.rows() if row.is_shown and _bottom(row) <= _bottom_of(canvas)]
    advanced.app.root.focus_force()
    max(low, key=_bottom).control.focus()  # visible, so nothing moves
    advanced.settle()
    assert canvas.yview()[0] == 0
    last = [row for row in page.form_view.rows() if row.is_shown][-1]
    last.control.focus()
    last.control.focus()
    advanced.settle()
    bottom = last.control.frame.winfo_rooty() + last.control.frame.winfo_height()
    assert bottom <= canvas.winfo_rooty() + canvas.winfo_height()


def test_pages_are_built_once_and_kept(window: Window) -> None:
    first = window.open_page("training")
    window.open_page("model")
    assert window.open_page("training") is first
    assert not window.app.shell.pages["model"].frame.winfo_ismapped()


def test_changing_the_family_shows_its_parts(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from modules.families.registry import FAMILIES

    view = form_of(window, "model")
    assert "parts/text_encoder" in {card.group.key for card in view.cards}
    other = replace(FAMILIES["sd"], parts=FAMILIES["sd"].parts[:1])
    monkeypatch.setattr("modules.config.schema.FAMILIES", {"sd": other})
    window.app.form.edit_text("training.epochs", "3")
    window.settle()
    assert "parts/text_encoder" not in {card.group.key for card in view.cards}
    assert "parts.unet.train" in {row.record.path for row in view.rows()}


def test_pages_say_what_training_the_vae_has_not(window: Window) -> None:
    """The Embeddings page was blank, and that of rewards named the menu of methods, which is not there."""
    window.app.form.edit("training.trains", "vae")
    window.settle()
    for key, words in (("embeddings", "it has no embeddings"), ("rewards", "choose another one")):
        view = form_of(window, key)
        window.settle()
        assert view.empty_note.winfo_ismapped(), key
        assert words in view.empty_note.cget("text")
        assert "method in the top bar" not in view.empty_note.cget("text")
    assert not window.app.shell.top_bar.choices["training.method"].winfo_ismapped()


def test_the_embeddings_page_names_a_family_without_embeddings(window: Window) -> None:
    page: Any = window.open_page("embeddings")
    form, note, card = window.app.form, page.form_view.empty_note, page.list.card
    for family in FAMILIES.values():
        form.choose_variant("model.family", family.name)
        window.settle()
        supports = bool(family.text.embedding_tensors)
        assert note.cget("text") == page_named("embeddings").empty_note(form.config)
        assert (family.label in note.cget("text")) is not supports
        assert bool(card.winfo_ismapped()) is supports
    form.choose_variant("model.family", next(f.name for f in FAMILIES.values() if not f.text.embedding_tensors))
    window.settle()
    form.edit("embeddings.words", [{"placeholder": "<zog>"}])
    window.settle()
    assert card.winfo_ismapped()  # to remove it
    form.edit("embeddings.words", [])
    window.settle()
    assert not card.winfo_ismapped()


def test_unknown_settings_survive_the_window(open_window: Callable[..., Window], tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"darkroom_version": 7, "from_the_future": {"a": 1}}), encoding="utf-8")
    window = open_window(path)
    assert window.app.form.source.name == "old"
    window.app.form.edit_text("training.epochs", "3")
    window.app.context.documents.save()
    assert load_file(path).config.unknown == {"from_the_future": {"a": 1}}


def test_the_form_of_another_family_leaves_nothing_of_the_one_before(window: Window) -> None:
    """Its widgets are destroyed over several turns: those of a whole form stalled the window."""
    model, form = window.app.form, form_of(window, "model")

    def load(family: str) -> tuple[int, int]:
        model.load(Config.model_validate({"model": {"family": family}}), Source(family))
        window.settle()
        return sum(1 for _ in walk(form)), len(model._watchers)

    before = load("sd")
    cards = list(form.cards)
    load("sdxl")
    assert not set(cards) & set(form.cards), "the groups differ"
    assert load("sd") == before


def test_a_form_follows_a_load_in_the_middle_of_its_build(window: Window) -> None:
    """It had the parts of the family before until the next edit, if presets were chosen in a row."""
    model, form = window.app.form, form_of(window, "model")

    def load(family: str) -> None:
        model.load(Config.model_validate({"model": {"family": family}}), Source(family))

    load("sdxl")
    form._follow()
    assert not form.is_complete
    load("flux")
    form._follow()
    window.settle()
    assert form.is_complete
    assert [card.group for card in form.cards] == list(form._groups_now())
