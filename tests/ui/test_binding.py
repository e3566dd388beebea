"""Variables bound to fields, without a display."""

from __future__ import annotations

import gc
import tkinter as tk
import weakref

import pytest

from modules.settings.every import Every
from tests.ui.made_up import TeaConfig
from ui.forms.binding import ChoiceBinding, EveryBinding, FlagBinding, TextBinding
from ui.forms.model import FormModel, Source


@pytest.fixture(scope="module")
def tcl() -> tk.Tk:
    return tk.Tcl()


@pytest.fixture
def form() -> FormModel:
    return FormModel(TeaConfig())


def text_of(form: FormModel, path: str, tcl: tk.Tk) -> tuple[tk.StringVar, TextBinding]:
    record = form.record(path)
    assert record is not None
    variable = tk.StringVar(master=tcl)
    return variable, TextBinding(form, record, variable)


def test_a_text_variable_shows_the_value_and_accepts_typing(form: FormModel, tcl: tk.Tk) -> None:
    variable, _ = text_of(form, "tea.strength", tcl)
    assert variable.get() == "4"
    variable.set("7")
    assert form.value("tea.strength") == 7
    form.edit("tea.strength", 2)
    assert variable.get() == "2"


def test_an_invalid_entry_stays_as_typed(form: FormModel, tcl: tk.Tk) -> None:
    variable, _ = text_of(form, "tea.strength", tcl)
    variable.set("lots")
    assert (variable.get(), form.value("tea.strength")) == ("lots", 4)
    form.undo()
    form.load(TeaConfig(), Source())
    assert variable.get() == "4"


def test_another_spelling_of_a_number_is_kept_until_typing_ends(form: FormModel, tcl: tk.Tk) -> None:
    variable, binding = text_of(form, "training.learning_rate", tcl)
    variable.set("1.0e-3")
    assert (variable.get(), form.value("training.learning_rate")) == ("1.0e-3", 1e-3)
    binding.tidy()
    assert variable.get() == "0.001"
    variable.set("oops")
    binding.tidy()
    assert variable.get() == "oops"


def test_a_switch(form: FormModel, tcl: tk.Tk) -> None:
    variable = tk.BooleanVar(master=tcl)
    FlagBinding(form, form.record("tea.has_milk"), variable)  # type: ignore[arg-type]
    variable.set(True)
    assert form.value("tea.has_milk") is True
    form.edit("tea.has_milk", False)
    assert variable.get() is False


def test_a_choice(form: FormModel, tcl: tk.Tk) -> None:
    variable = tk.StringVar(master=tcl)
    offers: list[dict[str, str]] = []
    ChoiceBinding(form, form.record("tea.flavour"), variable, lambda c: offers.append(dict(c)))  # type: ignore[arg-type]
    assert offers == [{"sweet": "Sweet", "sour": "Sour"}]
    variable.set("sour")
    assert form.value("tea.flavour") == "sour"
    form.edit("tea.flavour", "sweet")
    assert variable.get() == "sweet"


def test_a_variant(form: FormModel, tcl: tk.Tk) -> None:
    variable = tk.StringVar(master=tcl)
    ChoiceBinding(form, form.record("tea.brewing"), variable, lambda _choices: None)  # type: ignore[arg-type]
    variable.set("fast")
    assert form.value("tea.brewing.hurry") == 0.5
    form.undo()
    assert variable.get() == "slow"


def test_every_has_a_number_and_a_unit(form: FormModel, tcl: tk.Tk) -> None:
    number, unit = tk.StringVar(master=tcl), tk.StringVar(master=tcl)
    EveryBinding(form, form.record("tea.refill"), number, unit)  # type: ignore[arg-type]
    assert (number.get(), unit.get()) == ("2", "hour")
    number.set("10")
    unit.set("step")
    assert form.value("tea.refill") == Every(n=10, unit="step")
    number.set("often")
    assert form.draft("tea.refill") is not None
    assert form.value("tea.refill") == Every(n=10, unit="step")
    number.set("-1")
    assert form.draft("tea.refill") is not None
    number.set("3")
    assert form.draft("tea.refill") is None
    form.edit("tea.refill", Every())
    assert (number.get(), unit.get()) == ("1", "never")


def test_a_field_that_another_variant_or_family_does_not_have_takes_nothing(tcl: tk.Tk) -> None:
    form = FormModel(TeaConfig())
    form.choose_variant("tea.brewing", "fast")
    form.choose_variant("model.family", "sdxl")
    hurry, _ = text_of(form, "tea.brewing.hurry", tcl)
    share, _ = text_of(form, "parts.text_encoder_2.offload_fraction", tcl)
    rash = tk.BooleanVar(master=tcl)
    FlagBinding(form, form.record("tea.brewing.is_rash"), rash)  # type: ignore[arg-type]
    form.choose_variant("tea.brewing", "slow")
    form.choose_variant("model.family", "sd")
    config = form.config
    hurry.set("0.25")  # the form still shows their rows, for a moment
    share.set("much")
    rash.set(True)
    assert form.config == config
    assert not form.drafts


def test_a_closed_binding_is_unsubscribed(form: FormModel, tcl: tk.Tk) -> None:
    variable, binding = text_of(form, "tea.strength", tcl)
    binding.close()
    variable.set("9")
    assert form.value("tea.strength") == 4
    form.edit("tea.strength", 5)
    assert variable.get() == "9"


def test_nothing_of_a_closed_binding_stays_alive(form: FormModel, tcl: tk.Tk) -> None:
    variable, binding = text_of(form, "tea.strength", tcl)
    gone = weakref.ref(binding)
    binding.close()
    del binding, variable
    gc.collect()
    assert gone() is None
