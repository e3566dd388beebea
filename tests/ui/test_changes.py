"""Differences from the loaded file, a preset, the defaults: counted, listed, opened, reverted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.config import presets
from modules.config.schema import Config
from modules.data.concept import Concept
from tests.ui.conftest import Window
from tests.ui.made_up import TeaConfig
from ui.features.config_views.differences import Differences
from ui.forms.changes import changes, edits_since_start
from ui.forms.model import FormModel


def edited(**paths: object) -> Config:
    form = FormModel(Config())
    for path, value in paths.items():
        assert form.edit(path.replace("__", "."), value) is None, path
    return form.config


def test_nothing_differs_from_itself() -> None:
    assert changes(Config(), Config()) == ()
    assert changes(Config.model_validate({"parts": {"unet": {}}}), Config()) == ()


def test_fields_are_listed_as_text_in_page_order() -> None:
    config = edited(
        sampling__every={"n": 3, "unit": "step"},
        training__epochs=7,
        parts__unet__train=False,
        general__deterministic=True,
    )
    found = changes(config, Config())
    assert [c.path for c in found] == [
        "parts.unet.train", "general.deterministic", "training.epochs", "sampling.every",
    ]  # fmt: skip
    assert (found[0].place, found[0].before, found[0].now) == ("Model › UNet: Train", "on", "off")
    assert (found[3].now, found[2].before) == ("every 3 steps", "10")


def test_another_variant_is_one_entry_and_the_fields_of_one_are_their_own() -> None:
    found = changes(edited(training__optimizer="adafactor"), Config())
    assert [(c.path, c.before, c.now) for c in found] == [("training.optimizer", "AdamW", "Adafactor")]
    found = changes(edited(training__optimizer__weight_decay=0.5), Config())
    assert [c.path for c in found] == ["training.optimizer.weight_decay"]


def test_lists_count_if_requested_and_edited_entries_are_marked() -> None:
    one, other = edited(concepts=({"path": "a"},)), edited(concepts=({"path": "b"},))
    assert [c.now for c in changes(one, other)] == ["1 entry, edited"]
    assert [c.path for c in changes(one, Config())] == ["concepts"]
    assert changes(one, Config(), with_new_lists=False) == ()


def test_a_run_differs_by_the_entries_of_a_list_and_not_by_its_file() -> None:
    """A run that was found again was said to lack two changed settings: its config has the lists inside."""
    config = edited(concepts_file="cup.json", sampling__prompts_file="samples.json", training__epochs=7)
    of_run = edited(training__epochs=6)
    assert [c.path for c in edits_since_start(config, of_run)] == ["training.epochs"]
    other = config.model_copy(update={"concepts": (Concept(path="more"),)})
    assert [c.path for c in edits_since_start(other, of_run)] == ["concepts", "training.epochs"]


def test_unknown_and_remembered_settings_are_no_difference() -> None:
    config = Config.model_validate({"unknown": {"x": 1}, "remembered": {"training.optimizer": {"adafactor": {}}}})
    assert changes(config, Config()) == ()


def test_a_made_up_field_differs_too() -> None:
    form = FormModel(TeaConfig())
    form.edit("tea.strength", 9)
    assert [c.place for c in changes(form.config, TeaConfig())] == ["Training › Strength"]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One built-in preset."""
    folder = tmp_path / "training_presets"
    (folder / "sd").mkdir(parents=True)
    tree = {"darkroom_version": 7, "training": {"epochs": 33, "batch_size": 2}}
    (folder / "sd" / "#one.json").write_text(json.dumps(tree), encoding="utf-8")
    monkeypatch.setattr(presets, "BUILT_IN_DIR", folder)
    return folder


def rows(view: Differences) -> list[str]:
    return [view.table.tree.item(i, "text").strip() for i in view.table.tree.get_children()]


def test_the_count_in_the_top_bar_opens_the_list(window: Window, shipped: Path) -> None:
    bar, form = window.app.shell.top_bar, window.app.form
    (preset,) = window.app.context.documents.presets()
    window.app.context.documents.open_preset(preset)
    window.settle()
    assert bar.differs_link.cget("text") == ""
    form.edit_text("training.epochs", "34")
    form.edit_text("training.batch_size", "3")
    window.settle()
    assert bar.differs_link.cget("text") == "2 changes"
    bar.differs_link.event_generate("<Button-1>")
    window.settle()
    view = next(w for w in window.app.root.winfo_children() if isinstance(w, Differences))
    assert rows(view) == ["Training › Epochs", "Training › Batch size"]
    assert view.table.tree.item("0", "values") == ("33", "34")
    view.table.select([0])
    window.settle()
    view.go_button.invoke()
    window.settle()
    assert window.app.context.navigation.page == "training"
    view.revert_button.invoke()
    window.settle()
    assert form.config.training.epochs == 33
    assert rows(view) == ["Training › Batch size"]
    assert bar.differs_link.cget("text") == "1 change"
    form.undo()
    window.settle()
    assert len(rows(view)) == 2
    view.close()


def test_any_config_is_compared_with_any_preset(window: Window, shipped: Path) -> None:
    window.app.form.edit("concepts", ({"path": "mine"},))
    window.app.form.edit_text("training.epochs", "34")
    view = Differences(window.app.context)
    assert rows(view) == ["Concepts › Concepts", "Training › Epochs"]
    view.reference.set("defaults")
    assert rows(view) == ["Training › Epochs"]
    view.reference.set("preset #one")
    window.settle()
    assert rows(view) == ["Training › Epochs", "Training › Batch size"]
    view.table.select([0, 1])
    view.revert()
    assert (window.app.form.config.training.epochs, window.app.form.config.training.batch_size) == (33, 2)
    assert len(window.app.form.config.concepts) == 1
    assert rows(view) == []
    second = Differences(window.app.context)
    assert not view.winfo_exists()
    second.close()


def test_reverting_a_variant_restores_its_fields(window: Window) -> None:
    form = window.app.form
    form.edit("training.optimizer.weight_decay", 0.5)
    form.load(form.config, form.source)
    form.choose_variant("training.optimizer", "adafactor")
    view = Differences(window.app.context)
    assert rows(view) == ["Training › Optimizer"]
    view.table.select([0])
    view.revert()
    assert form.value("training.optimizer.weight_decay") == 0.5
    assert not form.is_changed
    view.close()
