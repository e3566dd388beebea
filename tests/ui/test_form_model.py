"""The form model: edits, drafts, undo, differences, notifications."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.data.concept import Concept
from modules.settings.edit import set_path
from tests.ui.made_up import TeaConfig
from ui.forms import items
from ui.forms.model import FormModel, Source


def test_an_edit_reaches_the_config() -> None:
    form = FormModel()
    assert form.edit_text("training.learning_rate", "1e-3") is None
    assert form.config.training.learning_rate == 1e-3
    assert form.is_changed
    assert form.differs("training.learning_rate")
    assert not form.differs("training.epochs")


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("training.learning_rate", "fast", "not a number"),
        ("training.learning_rate", "", "Enter a number"),
        ("training.learning_rate", "-1", "Allowed: from 0 to 100"),
        ("training.learning_rate", "nan", "finite number"),
        ("training.learning_rate", "1e400", "inf is out of range"),
        ("training.batch_size", "0", "Allowed: from 1"),
        ("training.batch_size", "2.5", "not a whole number"),
        ("data.resolution_px", "512, big", "not a whole number"),
        ("data.resolution_px", "", "at least one"),
        ("data.resolution_px", "512, 7", "out of range"),
        ("adapter.dropout", "1", "out of range"),
    ],
)
def test_an_invalid_entry_is_kept_beside_the_config(path: str, text: str, words: str) -> None:
    form = FormModel()
    before = form.config
    problem = form.edit_text(path, text)
    assert problem is not None
    assert words in problem.message
    assert form.config is before
    draft = form.draft(path)
    assert draft is not None
    assert (draft.text, draft.problem) == (text, problem)
    assert form.problems() == [problem]
    assert form.is_changed


def test_a_valid_entry_replaces_the_draft() -> None:
    form = FormModel()
    form.edit_text("training.batch_size", "0")
    assert form.edit_text("training.batch_size", "4") is None
    assert form.draft("training.batch_size") is None
    assert form.config.training.batch_size == 4


def test_typing_the_old_value_again_ends_the_draft_too() -> None:
    form = FormModel()
    form.edit_text("training.batch_size", "")
    reported: list[str] = []
    form.watch("training.batch_size", lambda: reported.append("reported"))
    form.edit_text("training.batch_size", "1")
    assert form.draft("training.batch_size") is None
    assert reported == ["reported"]


def test_only_watchers_of_a_changed_value_are_notified() -> None:
    form = FormModel()
    reported: list[str] = []
    form.watch("training.epochs", lambda: reported.append("epochs"))
    unsubscribe = form.watch("training.batch_size", lambda: reported.append("batch"))
    form.watch("parts.unet.train", lambda: reported.append("part"))
    form.changed.subscribe(lambda: reported.append("any"))
    form.edit_text("training.epochs", "3")
    assert reported == ["epochs", "any"]
    reported.clear()
    form.edit("parts.unet.train", False)
    assert reported == ["part", "any"]
    reported.clear()
    unsubscribe()
    form.load(Config(training={"batch_size": 9}), Source("other"))  # type: ignore[arg-type]
    assert reported == ["epochs", "part", "any"]


def test_undo_and_redo_go_step_by_step() -> None:
    form = FormModel()
    for text in ("2", "20", "200"):
        form.edit_text("training.epochs", text)
    form.edit_text("training.batch_size", "7")
    assert form.undo()
    assert (form.config.training.epochs, form.config.training.batch_size) == (200, 1)
    assert form.undo()
    assert form.config.training.epochs == 10  # typing in one field is one step
    assert not form.undo()
    assert form.redo()
    assert form.redo()
    assert (form.config.training.epochs, form.config.training.batch_size) == (200, 7)
    assert not form.redo()


def test_loading_can_be_undone() -> None:
    form = FormModel(source=Source("mine"))
    form.edit_text("training.epochs", "3")
    form.load(Config(), Source("#preset", kind="built_in"))
    assert not form.is_changed
    assert form.source.name == "#preset"
    form.undo()
    assert (form.source.name, form.config.training.epochs, form.is_changed) == ("mine", 3, True)


def test_loading_drops_drafts_and_notifies_their_fields() -> None:
    form = FormModel()
    form.edit_text("training.epochs", "many")
    reported: list[str] = []
    form.watch("training.epochs", lambda: reported.append("epochs"))
    form.load(Config(), Source())
    assert form.drafts == {}
    assert reported == ["epochs"]


def test_saving_makes_the_current_config_the_loaded_one() -> None:
    form = FormModel()
    form.edit_text("training.epochs", "3")
    form.mark_saved(Source("here", Path("here.json"), "file"))
    assert not form.is_changed
    assert not form.differs("training.epochs")


def test_a_part_with_all_its_defaults_is_no_change() -> None:
    form = FormModel()
    form.edit("parts.unet.train", False)
    assert form.is_changed
    form.edit("parts.unet.train", True)
    assert not form.is_changed


def test_a_variant_is_restored_as_it_was() -> None:
    form = FormModel()
    form.edit_text("training.optimizer.beta1", "0.8")
    form.choose_variant("training.optimizer", "adafactor")
    assert form.value("training.optimizer.beta1") is None
    form.choose_variant("training.optimizer", "adamw")
    assert form.value("training.optimizer.beta1") == 0.8


def test_a_draft_inside_a_variant_is_dropped_with_it() -> None:
    form = FormModel()
    form.edit_text("training.optimizer.beta1", "nine")
    form.choose_variant("training.optimizer", "adafactor")
    assert form.drafts == {}


def test_reset_to_the_loaded_value_and_to_the_default() -> None:
    loaded, _ = set_path(Config(), "training.epochs", 7)
    form = FormModel(loaded)
    form.edit_text("training.epochs", "x")
    form.reset("training.epochs", to="baseline")
    assert form.config.training.epochs == 7
    assert form.draft("training.epochs") is None
    form.reset("training.epochs", to="default")
    assert form.config.training.epochs == 10


def test_a_made_up_config_is_edited_like_ours() -> None:
    form = FormModel(TeaConfig())
    assert form.edit_text("tea.strength", "9") is None
    assert form.edit_text("tea.strength", "11") is not None
    assert form.value("tea.strength") == 9
    assert isinstance(form.config, TeaConfig)


@pytest.fixture
def three() -> FormModel:
    form = FormModel()
    items.add(form, "concepts", [Concept(name=n) for n in "abc"])
    return form


def names(form: FormModel) -> str:
    return "".join(c.name for c in form.config.concepts)


def test_lists_are_edited_as_a_whole(three: FormModel) -> None:
    assert items.add(three, "concepts", [Concept(name="d")]) == [3]
    assert items.duplicate(three, "concepts", [0, 2]) == [1, 4]
    assert names(three) == "aabccd"
    items.remove(three, "concepts", [0, 5])
    assert names(three) == "abcc"
    assert items.move(three, "concepts", 0, 2) == 2
    assert names(three) == "bcac"
    assert items.move(three, "concepts", 0, -1) == 0
    items.change(three, "concepts", [1, 2], enabled=False)
    assert [c.enabled for c in three.config.concepts] == [True, False, False, True]
    three.undo()
    assert all(c.enabled for c in three.config.concepts)


def test_a_draft_in_a_changed_list_is_dropped(three: FormModel) -> None:
    three.edit_text("concepts.1.repeats", "often")
    items.remove(three, "concepts", [0])
    assert three.drafts == {}


def test_an_entry_of_a_list_is_edited_by_its_path() -> None:
    form = FormModel()
    items.add(form, "sampling.prompts", [SamplePrompt(prompt="a cat")])
    assert form.edit_text("sampling.prompts.0.width_px", "100") is not None  # no multiple of 8
    assert form.edit_text("sampling.prompts.0.width_px", "128") is None
    assert form.config.sampling.prompts[0].width_px == 128


def test_fields_of_another_variant_count_as_edited_only_if_they_are() -> None:
    form = FormModel()
    form.choose_variant("training.optimizer", "prodigy")
    decay = form.record("training.optimizer.weight_decay")
    assert decay is not None
    assert form.differs(decay.path)  # AdamW's own default is another
    assert not form.is_edited(decay)
    assert not form.was_loaded(decay.path)
    form.edit(decay.path, 0.5)
    assert form.is_edited(decay)
    form.choose_variant("training.optimizer", "adamw")
    assert form.was_loaded(decay.path)
