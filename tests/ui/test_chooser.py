"""Choosing one of many from a list that is searched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from modules.config.records import top_records
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.optim.registry import OPTIMIZERS
from modules.rewards.settings import Scorer
from modules.settings.field import records_of
from tests.ui.conftest import Window
from tests.ui.driving import inside
from ui.forms.binding import choose_from_list
from ui.forms.chooser import Chooser, about
from ui.forms.fields import is_explained
from ui.widgets.controls import Choice


def opened(window: Window, path: str) -> Chooser:
    page: Any = window.open_page("training")
    row = next(row for row in page.form_view.rows() if row.record.path == path)
    inside(row.control.frame, Choice)._open_dropdown_menu()
    window.settle()
    return next(w for w in window.app.root.winfo_children() if isinstance(w, Chooser))


def test_an_optimizer_is_found_by_its_description_and_chosen(window: Window) -> None:
    chooser = opened(window, "training.optimizer")
    assert chooser.names == list(OPTIMIZERS)
    assert chooser.table.selected == [0]
    chooser.text.set("estimates")
    assert chooser.names[0] == "prodigy"
    assert "adamw" not in chooser.names
    chooser.text.set("muon adv")
    assert chooser.names == ["muon_adv", "adamuon_adv"]
    chooser.entry.tk_entry.focus_force()
    window.settle()
    chooser.entry.tk_entry.event_generate("<Down>")
    chooser.entry.tk_entry.event_generate("<Return>")
    window.settle()
    assert not chooser.winfo_exists()
    assert window.app.form.config.training.optimizer.name == "adamuon_adv"


def test_nothing_found_chooses_nothing(window: Window) -> None:
    chooser = opened(window, "training.optimizer")
    chooser.text.set("no such optimizer")
    chooser.go()
    assert chooser.winfo_exists()
    assert window.app.form.config.training.optimizer.name == "adamw"
    chooser.close()


def test_each_choice_of_a_method_a_model_or_a_sampler_is_explained_where_it_is_chosen() -> None:
    records = [*top_records(Config).values(), *records_of(SamplePrompt), *records_of(Scorer)]
    records += [inner for record in records for variant in record.variants.values() for inner in records_of(variant)]
    explained = {record.path: record for record in records if is_explained(record)}
    named = {"training.method", "training.trains", "model.family", "adapter", "training.optimizer", "training.schedule"}
    others = {"training.loss.weighting", "training.noise.distribution", "sampler", "held_out_reward", "kind", "loss"}
    assert named | others <= set(explained)
    short = [(p, n) for p, r in explained.items() for n in r.choices if not 15 < len(about(r, n)) <= 125]
    assert not short, short


def test_a_field_that_is_gone_opens_no_list(window: Window) -> None:
    """Its row is shown until the form is rebuilt."""
    record = window.app.form.record("training.optimizer")
    assert record is not None
    before = set(window.app.root.winfo_children())
    choose_from_list(window.app.context, replace(record, path="training.gone"), print)
    assert set(window.app.root.winfo_children()) == before
