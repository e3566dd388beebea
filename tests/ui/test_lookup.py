"""Searching settings."""

from __future__ import annotations

from modules.config.schema import Config
from tests.ui.conftest import Window
from ui.commands import open_finder
from ui.lookup import find_fields


def test_the_label_counts_more_than_the_help() -> None:
    found = [m.path for m in find_fields(Config(), "learning rate")]
    assert found[0].endswith(".learning_rate")
    assert {"training.learning_rate", "parts.unet.learning_rate", "training.schedule"} <= set(found)
    assert found.index("training.learning_rate") < found.index("training.schedule")


def test_all_words_must_match_and_places_count() -> None:
    assert next(m.path for m in find_fields(Config(), "text encoder train")) == "parts.text_encoder.train"
    assert find_fields(Config(), "no such thing at all") == []
    beta, *_ = find_fields(Config(), "BETA 1")
    assert (beta.path, beta.place) == ("training.optimizer.beta1", "Training › Optimizer")


def test_the_adapter_and_validation_are_found_on_their_own_pages() -> None:
    places = {m.path: m.place.partition(" › ")[0] for m in find_fields(Config(), "")}
    assert (places["adapter.rank"], places["validation.every"]) == ("LoRA / Adapter", "Validation")


def test_choices_are_found_by_their_names_after_settings() -> None:
    found = find_fields(Config(), "prodigy")
    assert (found[0].path, found[0].label) == ("training.optimizer", "Optimizer: Prodigy")
    assert next(m.label for m in find_fields(Config(), "optimizer muon")) == "Optimizer: Muon"
    assert find_fields(Config(), "ema")[0].path == "training.ema.mode"
    for words, path in (("offset noise", "noise.offset_weight"), ("huber", "loss.huber_strength")):
        assert find_fields(Config(), words)[0].path == f"training.{path}"
    assert find_fields(Config(), "dora")[0].path == "adapter.decompose"


def test_no_words_list_everything() -> None:
    assert len(find_fields(Config(), "")) > 50


def test_the_window_opens_the_chosen_field(window: Window) -> None:
    root = window.app.root
    root.focus_force()
    root.update()
    root.event_generate("<Control-f>")
    finder = next(w for w in root.winfo_children() if type(w).__name__ == "Finder")
    window.settle()
    finder.text.set("checkpointing")
    assert finder.matches[0].label == "Gradient checkpointing"
    inner = finder.entry.tk_entry
    inner.focus_force()
    window.settle()
    inner.event_generate("<Down>")
    assert finder.table.selected == [1]
    path = finder.matches[1].path
    inner.event_generate("<Return>")
    window.settle()
    assert not finder.winfo_exists()
    assert window.app.context.navigation.page == "model"
    page = window.app.shell.pages["model"]
    row = next(r for r in page.form_view.rows() if r.record.path == path)  # type: ignore[attr-defined]
    assert row.is_shown


def test_there_is_one_finder(window: Window) -> None:
    first = open_finder(window.app.context)
    second = open_finder(window.app.context)
    assert not first.winfo_exists()
    second.text.set("no such thing")
    second.go()
    second._move(1)
    assert second.winfo_exists()  # there is nowhere to go
    second.close()
