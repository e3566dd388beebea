"""Loading and saving configs and presets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from modules.config.codec import load_file, save_file
from modules.config.presets import Preset, list_presets, save_preset
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.data.concept import Concept
from modules.settings.edit import choose_variant, get_path, replace_value
from modules.system.paths import PROGRAM_ROOT, as_config_path
from modules.system.problem import Problem
from tests.ui.recorder import Recorder
from trainer.preflight.fit import Fit
from trainer.preflight.moves import Move
from trainer.preflight.search import Worth
from ui.forms import items
from ui.forms.card_fit import CardFit
from ui.forms.documents import Documents, first_form
from ui.forms.findings import Findings, entry_name, locate
from ui.forms.model import FormModel, Source
from ui.forms.preferences import Preferences, UiSettings
from ui.loop.background import Background, Job
from ui.widgets.notices import Notices


class WaitingJobs(Background):
    """Jobs that wait until they are finished all at once."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[Job] = []

    def _submit(self, job: Job) -> Job:
        self._waiting.append(job)
        return job

    def finish(self) -> int:
        """Do those that were not cancelled; return how many that were."""
        jobs, self._waiting = [job for job in self._waiting if not job.is_cancelled], []
        for job in jobs:
            job.done(job.work())
        return len(jobs)


class Desk:
    """Documents with their collaborators."""

    def __init__(self) -> None:
        self.form, self.asked, self.findings = FormModel(), Recorder(), Findings()
        self.preferences = Preferences(UiSettings())
        self.messages: list[str] = []
        self.notices = Notices()
        self.background, self.is_card_free = WaitingJobs(), True
        self.reading = WaitingJobs()
        self.documents = Documents(
            self.form,
            self.asked,
            self.findings,
            self.preferences,
            self.notices,
            self.messages.append,
            CardFit(self.form, self.background, self.messages.append, is_card_free=lambda: self.is_card_free),
            self.reading,
        )

    def open_file(self, path: Path | None = None) -> None:
        """Load a file, and wait for it."""
        self.documents.open_file(path)
        self.reading.finish()


@pytest.fixture
def desk() -> Desk:
    return Desk()


def built_in(tmp_path: Path, name: str = "#one", **tree: object) -> Preset:
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps({"darkroom_version": 7, **tree}), encoding="utf-8")
    return Preset(name, "sd", path)


def test_save_as_and_load_restore_the_config(desk: Desk, tmp_path: Path) -> None:
    desk.form.edit_text("training.epochs", "3")
    desk.asked.answers["ask_save_file"] = tmp_path / "mine.json"
    desk.documents.save_as_file()
    saved = desk.form.config
    assert not desk.form.is_changed
    assert desk.form.source == Source("mine", tmp_path / "mine.json", "file")
    desk.form.edit_text("training.epochs", "4")
    desk.documents.save()
    assert load_file(tmp_path / "mine.json").config.training.epochs == 4
    desk.asked.answers["ask_file"] = tmp_path / "mine.json"
    desk.form.load(Config(), Source())
    desk.open_file()
    assert desk.form.config.training.epochs == 4
    assert desk.form.config != saved
    assert desk.preferences.now.recent == (str(tmp_path / "mine.json"),)
    assert desk.preferences.last_folder == tmp_path


def test_a_name_without_a_suffix_gets_one(desk: Desk, tmp_path: Path) -> None:
    desk.asked.answers["ask_save_file"] = tmp_path / "mine"
    desk.documents.save_as_file()
    assert (tmp_path / "mine.json").is_file()


def test_cancelled_dialogs_change_nothing(desk: Desk) -> None:
    before = desk.form.config
    desk.open_file()
    desk.documents.save()  # nothing was loaded, so the user chooses a file
    desk.documents.save_as_preset()
    assert desk.form.config is before
    assert [verb for verb, _ in desk.asked.calls] == ["ask_file", "ask_save_file", "ask_text"]


def test_a_built_in_preset_is_never_overwritten(desk: Desk, tmp_path: Path) -> None:
    preset = built_in(tmp_path)
    before = preset.path.read_bytes()
    desk.documents.open_preset(preset)
    desk.form.edit_text("training.epochs", "3")
    desk.documents.save()
    assert preset.path.read_bytes() == before
    (_title, proposed, _kinds) = desk.asked.asked("ask_save_file")[0]
    assert proposed.name == "one.json"


def test_a_user_preset(desk: Desk) -> None:
    desk.form.edit_text("training.epochs", "3")
    desk.asked.answers["ask_text"] = "# my faces"
    desk.documents.save_as_preset()
    (mine,) = (p for p in list_presets() if not p.is_built_in)
    assert (mine.name, mine.load().config.training.epochs) == ("my faces", 3)
    assert desk.form.source == Source("my faces", mine.path, "preset")
    desk.form.edit_text("training.epochs", "4")
    desk.documents.save()
    assert mine.load().config.training.epochs == 4


def test_a_preset_of_the_same_name_is_replaced_only_on_request(desk: Desk) -> None:
    save_preset(Config(), "taken")
    desk.asked.answers["ask_text"] = "taken"
    desk.form.edit_text("training.epochs", "3")
    desk.documents.save_as_preset()
    assert desk.form.is_changed
    desk.asked.answers["choose"] = "replace"
    desk.documents.save_as_preset()
    assert not desk.form.is_changed


def test_a_preset_needs_a_name(desk: Desk) -> None:
    desk.asked.answers["ask_text"] = " # "
    desk.documents.save_as_preset()
    assert "needs a name" in desk.asked.asked("show_failure")[0][0].message


def test_a_failed_write_is_reported(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    desk.asked.answers["ask_save_file"] = tmp_path / "file" / "below.json"
    desk.form.edit_text("training.epochs", "3")
    desk.documents.save_as_file()
    assert desk.asked.asked("show_failure")
    assert desk.form.is_changed


def test_a_preset_without_settings_changes_nothing(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "workflow.json").write_text('{"nodes": [], "links": []}', encoding="utf-8")
    desk.form.edit_text("training.epochs", "3")
    desk.documents.open_preset(Preset("workflow", "yours", tmp_path / "workflow.json"))
    assert desk.form.config.training.epochs == 3
    assert desk.findings.title == "workflow could not be loaded"


@pytest.mark.parametrize("content", ["{", '{"nodes": [], "links": []}'])
def test_a_file_that_is_not_a_config_changes_nothing(desk: Desk, tmp_path: Path, content: str) -> None:
    (tmp_path / "broken.json").write_text(content, encoding="utf-8")
    desk.form.edit_text("training.epochs", "3")
    desk.open_file(tmp_path / "broken.json")
    assert desk.form.config.training.epochs == 3
    assert desk.findings.title == "broken.json could not be loaded"


@pytest.mark.parametrize(
    ("content", "kind"), [('[{"name": "cup", "path": "D:/cup"}]', "concepts"), ('[{"prompt": "a cup"}]', "samples")]
)
def test_a_list_of_onetrainer_is_named_and_its_folder_is_where_the_next_dialog_starts(
    desk: Desk, tmp_path: Path, content: str, kind: str
) -> None:
    """The message was "it is not a JSON object", and the next dialog was at home again."""
    (tmp_path / "cup.json").write_text(content, encoding="utf-8")
    desk.asked.answers["ask_file"] = tmp_path / "cup.json"
    desk.open_file()
    (finding,) = desk.findings.items
    assert finding.problem.message == f"{tmp_path / 'cup.json'} is a list of {kind}, not a config."
    advice = f"Load the config that uses it, or choose it as {kind.capitalize()} in a file."
    assert finding.problem.advice == advice
    assert desk.preferences.last_folder == tmp_path


def test_the_problems_of_a_file_are_listed_with_their_places(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(
        json.dumps({"darkroom_version": 7, "training": {"epochs": "many", "what": 1}}), encoding="utf-8"
    )  # fmt: skip
    desk.open_file(path)
    places = {f.problem.path: (f.place, f.page) for f in desk.findings.items}
    assert places["training.epochs"] == ("Training › Epochs", "training")
    assert places["training.what"] == ("training.what", ""), "an unknown setting has no field"
    desk.findings.dismiss()
    assert desk.findings.items == ()


def test_a_preset_without_concepts_keeps_the_users(desk: Desk, tmp_path: Path) -> None:
    items.add(desk.form, "concepts", [Concept(path="cats")])
    items.add(desk.form, "sampling.prompts", [SamplePrompt(prompt="a cat")])
    desk.documents.open_preset(built_in(tmp_path, training={"epochs": 77}))
    assert [c.path for c in desk.form.config.concepts] == ["cats"]
    assert [p.prompt for p in desk.form.config.sampling.prompts] == ["a cat"]
    assert desk.form.config.training.epochs == 77
    assert desk.messages[-1] == "Loaded #one. Kept from before: Concepts, Samples."


def test_what_is_the_users_stays_through_any_number_of_presets(desk: Desk, tmp_path: Path) -> None:
    """Who corrects "24 GB" to "8 GB" used to begin again: the second preset dropped what the first one had kept."""
    desk.documents.open_preset(built_in(tmp_path, "#24 GB", output={"destination": "models/sdxl-lora.safetensors"}))
    items.add(desk.form, "concepts", [Concept(path="cats")])
    items.add(desk.form, "sampling.prompts", [SamplePrompt(prompt="a cat")])
    mine = {
        "output.destination": "models/my-cat.safetensors",
        "general.workspace_dir": "/cats",
        "general.cache_dir": "/cats/cache",
    }
    for path, text in mine.items():
        desk.form.edit_text(path, text)
    for number in (8, 12):
        other = built_in(tmp_path, f"#{number} GB", output={"destination": "models/other.safetensors"})
        desk.documents.open_preset(other)
        assert {path: get_path(desk.form.config, path) for path in mine} == mine
        assert [c.path for c in desk.form.config.concepts] == ["cats"]
        assert [p.prompt for p in desk.form.config.sampling.prompts] == ["a cat"]
        assert desk.messages[-1] == (
            f"Loaded #{number} GB. Kept from before: Concepts, Samples, Save to, Workspace folder, Cache folder."
        )
        assert desk.notices.items == (), "nothing was replaced"
    desk.form.edit_text("output.destination", "models/other.safetensors")
    desk.documents.open_preset(built_in(tmp_path, "#6 GB", output={"destination": "models/six.safetensors"}))
    assert desk.form.config.output.destination == "models/six.safetensors", "the preset's own is not the user's"


def test_a_preset_with_images_of_its_own_is_loaded_as_it_is(desk: Desk, tmp_path: Path) -> None:
    """The demo's zogs were trained into the file of the user's cats, with the cats' trigger word."""
    items.add(desk.form, "concepts", [Concept(path="cats")])
    desk.form.edit_text("output.destination", "models/cats.safetensors")
    desk.form.edit_text("output.trigger_words", "ohwx")
    demo = built_in(tmp_path, "#demo flow", concepts=[{"path": "demo/zog"}])
    desk.documents.open_preset(demo)
    assert desk.form.config == demo.load().config
    assert "replaced" in desk.notices.items[0].text


def test_the_concepts_of_a_preset_are_replaced_with_it(desk: Desk, tmp_path: Path) -> None:
    desk.documents.open_preset(built_in(tmp_path, "#demo", concepts=[{"path": "demo/zog"}]))
    desk.documents.open_preset(built_in(tmp_path, "#real"))
    assert desk.form.config.concepts == ()
    desk.documents.open_preset(built_in(tmp_path, "#demo", concepts=[{"path": "demo/zog"}]))
    items.add(desk.form, "concepts", [Concept(path="mine")])
    desk.documents.open_preset(built_in(tmp_path, "#real"))
    assert [c.path for c in desk.form.config.concepts] == ["demo/zog", "mine"]


def test_a_first_start_opens_the_demo_or_the_defaults() -> None:
    form = first_form()
    names = {p.name for p in list_presets()}
    assert form.source.name == ("#demo" if "#demo" in names else "Untitled")


def test_paths_inside_the_program_folder_are_stored_relative() -> None:
    assert as_config_path(PROGRAM_ROOT / "demo" / "zog") == "demo/zog"
    assert as_config_path(Path("/elsewhere/x")) == str(Path("/elsewhere/x").absolute())
    assert as_config_path(PROGRAM_ROOT) == str(PROGRAM_ROOT)


def test_list_entries_are_named() -> None:
    form = FormModel()
    items.add(form, "concepts", [Concept(name="cats"), Concept(), Concept(path="photos/dogs")])
    assert entry_name("concepts.0.path", form.config) == "cats"
    assert entry_name("concepts.1.path", form.config) == "entry 2"
    assert entry_name("concepts.2.path", form.config) == "dogs", "as on its card"
    assert entry_name("training.epochs", form.config) == ""


def test_every_built_in_preset_is_saved_and_loaded_as_it_is(tmp_path: Path) -> None:
    for preset in list_presets():
        config = preset.load().config
        save_file(config, tmp_path / "copy.json")
        assert load_file(tmp_path / "copy.json").config == config


def test_a_problem_without_a_place_has_no_link() -> None:
    from modules.system.problem import Problem

    assert locate(Problem("", "The file is odd."), Config()).page == ""
    assert locate(Problem("onetrainer.cloud", "Kept."), Config()).place == "onetrainer.cloud"


def test_a_preset_is_saved_as_one_file_and_an_export_too(desk: Desk, tmp_path: Path) -> None:
    items.add(desk.form, "concepts", [Concept(path="cats")])
    desk.form.edit_text("concepts_file", "lists/concepts.json")
    desk.asked.answers["ask_text"] = "mine"
    desk.documents.save_as_preset()
    desk.form.edit_text("training.epochs", "4")
    desk.documents.save()
    desk.asked.answers["ask_save_file"] = tmp_path / "all.json"
    desk.documents.export()
    mine = next(p for p in list_presets() if not p.is_built_in)
    for file in (mine.path, tmp_path / "all.json"):
        assert [c.path for c in load_file(file).config.concepts] == ["cats"]
        assert load_file(file).config.training.epochs == 4
        assert not (file.parent / "lists").exists()
    desk.asked.answers["ask_save_file"] = tmp_path / "apart.json"
    desk.documents.save_as_file()
    assert (tmp_path / "lists" / "concepts.json").is_file()
    assert [c.path for c in load_file(tmp_path / "apart.json").config.concepts] == ["cats"]


def test_a_load_over_unsaved_changes_offers_to_undo_it(desk: Desk, tmp_path: Path) -> None:
    save_file(Config(), tmp_path / "one.json")
    desk.open_file(tmp_path / "one.json")
    assert desk.notices.items == ()  # nothing was lost
    desk.form.edit("training.epochs", 7)
    desk.form.edit("training.batch_size", 3)
    save_file(Config(), tmp_path / "two.json")
    desk.open_file(tmp_path / "two.json")
    [notice] = desk.notices.items
    assert notice.text == "Loaded two. It replaced one with 2 unsaved changes."
    desk.form.reject("training.epochs", "many", Problem("training.epochs", "No number."))  # the config is the same
    desk.notices.reply(notice, notice.replies[0])
    assert desk.form.config.training.epochs == 7
    assert desk.form.source.name == "one"
    assert desk.messages[-1] == "one is back, with its unsaved changes."
    desk.open_file(tmp_path / "two.json")
    assert len(desk.notices.items) == 1
    desk.form.edit("training.epochs", 9)  # an undo would take back this edit
    assert desk.notices.items == ()


def test_a_config_is_read_in_the_background_and_the_newest_one_is_loaded(desk: Desk, tmp_path: Path) -> None:
    """Images of other programs' configs are counted, and their folder may be far away."""
    for name, tree in (("one", {"epochs": 7}), ("two", {"epochs": 8})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"darkroom_version": 7, "training": tree}))
        desk.documents.open_file(tmp_path / f"{name}.json")
        assert (desk.form.config, desk.form.awaited) == (Config(), f"{name}.json")
    assert desk.messages == ["Loading one.json…", "", "Loading two.json…"]
    assert desk.reading.finish() == 1
    assert (desk.form.config.training.epochs, desk.form.awaited) == (8, "")
    desk.documents.open_file(tmp_path / "one.json")
    desk.documents.open_preset(built_in(tmp_path))
    assert (desk.reading.finish(), desk.form.source.name) == (0, "#one")
    desk.documents.open_file(tmp_path / "one.json")
    desk.form.load(Config(), Source("zog"))  # of a run, or of an item of the queue
    assert (desk.reading.finish(), desk.form.source.name, desk.form.awaited) == (0, "zog", "")


def small_batch(config: Config) -> Fit:
    values = (("training.batch_size", 1),)
    change = Worth(Move("training.batch_size", "a smaller batch", values), 10**9, 1.0)
    return Fit(change.move.apply_to(config), (change,), 6 * 10**9, 6 * 10**9, 7 * 10**9, 5 * 10**9, 1.0, fits=True)


def test_a_built_in_preset_is_fitted_to_the_free_memory(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ui.forms.card_fit.find_fit", small_batch)
    form, documents, large = desk.form, desk.documents, {"training": {"batch_size": 4}}
    form.edit("concepts", (Concept(path="cats"),))
    form.edit("training.epochs", 7)
    before = form.document
    documents.open_preset(built_in(tmp_path, **large))
    assert form.config.training.batch_size == 4
    form.edit("output.destination", "models/mine.safetensors")  # meanwhile
    form.undo()
    desk.background.finish()
    assert desk.messages[-1] == (
        "Fitted to the 6.0 GB that are free on the card now: a smaller batch. Ctrl+Z undoes it."
    )
    assert form.config.training.batch_size == 1
    assert [concept.path for concept in form.config.concepts] == ["cats"]
    form.undo()
    assert (form.config.training.batch_size, form.source.name) == (4, "#one")
    form.undo()
    assert form.document == before

    documents.open_preset(built_in(tmp_path, **large))
    desk.background.finish()
    [notice] = desk.notices.items
    desk.notices.reply(notice, notice.replies[0])
    assert form.document == before, "the load is undone with its fit"

    documents.open_preset(built_in(tmp_path, **large))
    form.edit("training.batch_size", 3)
    desk.background.finish()
    assert form.config.training.batch_size == 3, "what the user sets meanwhile stays"
    documents.open_preset(built_in(tmp_path, **large))
    documents.open_preset(built_in(tmp_path, "mine", training={"batch_size": 2}))
    assert desk.background.finish() == 1, "what the first one needs is not computed any more"
    assert form.config.training.batch_size == 2, "neither to one of the user's own, nor after another load"
    desk.is_card_free = False
    documents.open_preset(built_in(tmp_path, **large))
    desk.background.finish()
    assert form.config.training.batch_size == 4, "the run is for another machine, or the card has one already"


def test_a_preset_that_is_not_fitted_says_what_it_needs(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ui.forms.card_fit.find_fit", small_batch)
    form, documents = desk.form, desk.documents
    needs = "It needs about 7.0 GB of memory, and 6.0 GB are free on the card now. Fit to my card"
    documents.open_preset(built_in(tmp_path, "mine", training={"batch_size": 4}))
    desk.background.finish()
    assert desk.messages[-1] == f"Loaded mine. {needs} finds settings that fit."
    assert form.config.training.batch_size == 4, "it is the user's own"

    monkeypatch.setattr("ui.forms.card_fit.find_fit", lambda config: replace(small_batch(config), fits=False))
    documents.open_preset(built_in(tmp_path, training={"batch_size": 4}))
    desk.background.finish()
    assert desk.messages[-1] == f"Loaded #one. {needs} shows what comes nearest."
    assert form.config.training.batch_size == 4

    documents.open_preset(built_in(tmp_path, training={"batch_size": 4}))
    form.edit("training.batch_size", 1)
    desk.background.finish()
    assert desk.messages[-1] == "Loaded #one.", "these are not the settings any more"

    monkeypatch.setattr("ui.forms.card_fit.find_fit", small_batch)
    documents.open_preset(built_in(tmp_path, training={"batch_size": 4}))
    form.edit_text("training.epochs", "1e")
    desk.background.finish()
    assert form.draft("training.epochs") is not None, "it is being typed"
    assert form.config.training.batch_size == 4
    assert desk.messages[-1] == f"Loaded #one. {needs} finds settings that fit."


def test_a_preset_is_not_fitted_once_a_run_has_begun(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ui.forms.card_fit.find_fit", small_batch)
    desk.documents.open_preset(built_in(tmp_path, training={"batch_size": 4}))
    desk.is_card_free = False  # before the fit is found
    desk.background.finish()
    assert desk.form.config.training.batch_size == 4
    assert desk.messages[-1] == "Loaded #one."


def test_a_copy_of_a_built_in_preset_is_proposed_among_the_users_presets(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "config" / "presets"
    monkeypatch.setattr("ui.forms.documents.user_presets_dir", lambda: folder)
    desk.documents.open_preset(built_in(tmp_path))
    desk.asked.answers["ask_save_file"] = folder / "one.json"
    desk.documents.save()
    assert desk.asked.asked("ask_save_file")[0][1] == folder / "one.json"
    assert folder.is_dir()
    assert desk.form.source == Source("one", folder / "one.json", "preset")
    desk.form.edit("training.epochs", 7)
    desk.documents.save()
    assert load_file(folder / "one.json").config.training.epochs == 7


@pytest.mark.parametrize("answer", ["write", "inside", "cancel", None])
def test_a_list_outside_of_the_folder_is_written_only_after_a_question(
    desk: Desk, tmp_path: Path, answer: str | None
) -> None:
    """A config from elsewhere may name any file of the user for its concepts."""
    diary, file = tmp_path / "diary.txt", tmp_path / "configs" / "c.json"
    diary.write_text("precious")
    file.parent.mkdir()
    file.write_text(json.dumps({"darkroom_version": 2, "concepts_file": "../diary.txt"}))
    desk.open_file(file)
    desk.form.edit("training.epochs", 7)
    desk.asked.answers["choose"] = answer
    desk.documents.save()
    assert str(diary) in desk.asked.asked("choose")[0][1]
    assert (diary.read_text() == "precious") is (answer != "write")
    assert ("epochs" in file.read_text()) is (answer in ("write", "inside"))
    desk.documents.save()
    assert len(desk.asked.asked("choose")) == (1 if answer in ("write", "inside") else 2)


def test_a_warning_of_a_loaded_file_goes_with_the_value_that_it_is_about() -> None:
    """It stayed until it was dismissed."""
    findings, config = Findings(), FormModel().config
    problems = [Problem("data.resolution_px", "It stays 1024.", "warning"), Problem("training.epochs", "Odd.", "error")]
    note = Problem("training.epochs", "It was converted.", "info")
    findings.show("Loaded", [*problems, note], config, keeps_notes=True)
    findings.drop_settled(config)
    assert len(findings.visible) == 3
    findings.drop_settled(replace_value(config, "training.epochs", 7))
    assert [f.problem.message for f in findings.visible] == ["It stays 1024.", "It was converted."]
    findings.dismiss()
    findings.drop_settled(replace_value(config, "data.resolution_px", (768,)))
    findings.bring_back()
    assert [f.problem.message for f in findings.visible] == ["It was converted."], "it was dismissed meanwhile"


def test_a_note_of_a_check_goes_with_the_value_or_the_method_that_it_is_about() -> None:
    """It stayed until the next check: of a variant that was changed, and of a method that was not chosen any more."""
    findings, config = Findings(), FormModel().config
    notes = [Problem("model.variant", "No masks.", "info"), Problem("reward.num_images", "It has no effect.", "info")]
    findings.show("Cannot start yet", notes, config)
    findings.drop_settled(replace_value(config, "model.variant", "inpainting"))
    assert [f.problem.message for f in findings.visible] == ["It has no effect."]
    findings.drop_settled(choose_variant(config, "training.method", "grpo")[0])
    assert not findings.visible


def test_an_error_of_the_settings_is_listed_above_the_notes_about_the_file() -> None:
    """It came last, below notes that fill the list."""
    findings, config = Findings(), FormModel().config
    findings.show("Loaded", [Problem("", "It was migrated.", "info"), Problem("", "Odd.", "warning")], config)
    findings.show_current([Problem("training.optimizer", "It needs a package.", "error")], config)
    assert [f.problem.severity for f in findings.visible] == ["error", "warning", "info"]
