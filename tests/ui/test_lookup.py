"""Searching settings."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from modules.config.imports.other_names import other_names
from modules.config.schema import Config
from modules.config.sections.general import General
from modules.settings.field import Setting
from tests.ui.conftest import Window
from ui.app.catalogue import page_named
from ui.features.about import Keys
from ui.features.search.finder import Finder
from ui.features.search.model import Index, SearchResult
from ui.widgets.actions import Action

COMMANDS = [
    Action("base_model", "Base model…", print, help="Choose a model file or folder"),
    Action("load", "Load…", print, help="Load a config"),
    Action("export", "Export as one file…", print, help="Write the model as one file"),
    Action("appearance_dark", "Dark", print, help="Dark window colors"),
    Action("appearance_light", "Light", print, help="Light window colors"),
    Action("page_tools", "Tools", print),
    Action("other_family", "Train this dataset on…", print, help="Take the config to another model family"),
    Action("fit", "Fit to my card…", print, help="Find the fastest settings whose memory fits the card"),
    Action("probe", "Probe…", print, help="Measure the batch size and the learning rate on a few real steps"),
    Action("captions", "Captions and masks…", print, help="Edit captions and masks"),
    Action("auto_captions", "Automatic captions…", print, help="Let a model write the captions"),
    Action("keys", "Keys…", print, "F1", help="List every key"),
    Action("page_queue", "Queue", print, "Ctrl+U"),
    Action("page_runs", "Runs", print, "Ctrl+H"),
]
ACTIONS = Index(Config(), actions=COMMANDS)


def test_the_label_counts_more_than_the_help() -> None:
    found = [m.path for m in Index(Config()).find("learning rate").matches]
    assert found[0].endswith(".learning_rate")
    assert {"training.learning_rate", "parts.unet.learning_rate", "training.schedule"} <= set(found)
    assert found.index("training.learning_rate") < found.index("training.schedule")


def test_all_words_must_match_and_places_count() -> None:
    assert next(m.path for m in Index(Config()).find("text encoder train").matches) == "parts.text_encoder.train"
    beta, *_ = Index(Config()).find("BETA 1").matches
    assert (beta.path, beta.place) == ("training.optimizer.beta1", "Training › Optimizer")


def test_the_adapter_and_validation_are_found_on_their_pages() -> None:
    places = {m.path: m.place.partition(" › ")[0] for m in Index(Config()).find("").matches}
    assert (places["adapter.rank"], places["validation.every"]) == (
        page_named("training").title,
        page_named("sampling").title,
    )


def test_choices_are_found_by_their_names_after_settings() -> None:
    found = Index(Config()).find("prodigy").matches
    assert (found[0].path, found[0].label) == ("training.optimizer", "Optimizer: Prodigy")
    assert next(m.label for m in Index(Config()).find("optimizer muon").matches) == "Optimizer: Muon"
    assert Index(Config()).find("ema").matches[0].path == "training.ema.mode"
    for words, path in (("offset noise", "noise.offset_weight"), ("huber", "loss.mix.huber.strength")):
        assert Index(Config()).find(words).matches[0].path == f"training.{path}"
    assert Index(Config()).find("dora").matches[0].path == "adapter.decompose"


def test_the_main_setting_comes_before_those_of_the_parts() -> None:
    found = [m.path for m in Index(Config()).find("learning rate").matches]
    assert found[0] == "training.learning_rate"
    assert found.index("parts.unet.learning_rate") < found.index("training.schedule")
    assert Index(Config()).find("text encoder learning rate").matches[0].path == "parts.text_encoder.learning_rate"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("flip", "concepts.0.image.flip"),
        ("mirror", "concepts.0.image.flip"),
        ("mask", "masks.enabled"),
        ("prodigy", "training.optimizer"),
        ("lr", "training.learning_rate"),
        ("dim", "adapter.rank"),
        ("bf16", "training.precision"),
        ("xformers", "training.attention"),
        ("repeats", "concepts.0.repeats"),
        ("sampler", "sampling.prompts.0.sampler"),
        ("blind vote", "training.method.chosen_by"),
        ("num repeats", "concepts.0.repeats"),
        ("flux", "model.family"),
        ("fp8", "parts.unet.dtype"),
        ("sdxl", "model.family"),
        ("train text encoder", "parts.text_encoder.train"),
        ("shuffle caption", "concepts.0.text.shuffle_tags"),
    ],
)
def test_fields_of_entries_options_and_usual_words_are_found(text: str, path: str) -> None:
    for names in ({}, other_names()):
        assert Index(Config(), names, COMMANDS).find(text).matches[0].path == path


@pytest.mark.parametrize(
    ("key", "path", "note"),
    [
        ("unet_lr", "parts.unet.learning_rate", "kohya: unet_lr"),
        ("network_dim", "adapter.rank", "kohya: network_dim"),
        ("noise_offset", "training.noise.offset_weight", "kohya: noise_offset"),
        ("max_grad_norm", "training.clip_grad_norm", "kohya: max_grad_norm"),
        ("lora_rank", "adapter.rank", "OneTrainer: lora_rank"),
        ("rolling_backup_count", "backup.keep", "OneTrainer: rolling_backup_count"),
        ("train_dtype", "training.precision", "OneTrainer: train_dtype"),
        ("text_encoder_layer_skip", "model.family.clip_skip", "OneTrainer: text_encoder_layer_skip"),
    ],
)
def test_keys_of_other_programs_lead_to_our_setting(key: str, path: str, note: str) -> None:
    best = Index(Config(), other_names()).find(key).matches[0]
    assert best.path == path
    assert best.note.startswith(note)


def test_what_does_not_apply_now_is_found_with_what_it_needs() -> None:
    prodigy = Index(Config()).find("d_coef").matches[0]
    assert (prodigy.path, prodigy.opens) == ("training.optimizer.d_coef", "training.optimizer")
    assert prodigy.note.startswith("needs Optimizer: Prodigy or ")
    ema = next(m for m in Index(Config()).find("ema decay").matches if m.path == "training.ema.decay")
    assert ema.note == "needs EMA: On the training device or On the offload device"
    assert ema.opens == ema.path
    assert Index(Config()).find("flip").matches[0].opens == "concepts"  # without a concept there is no editor to open
    with_one = Config.model_validate({"concepts": [{"path": "x"}]})
    assert Index(with_one).find("flip").matches[0].opens == "concepts.0.image.flip"


def test_the_nearest_is_found_and_no_hit_finds_nothing() -> None:
    """No hit used to list all settings."""
    index = Index(Config())
    assert not index.find("optimizer").is_nearest
    near = index.find("optimzer")
    assert near.is_nearest
    assert near.matches[0].path == "training.optimizer"
    assert index.find("no such thing at all").matches
    for text in ("zzzz", "?!?! xqzjv", "blorgh"):
        assert index.find(text) == SearchResult((), is_nearest=True), text


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("fit", "fit"),
        ("out of memory", "fit"),
        ("probe", "probe"),
        ("learning rate finder", "probe"),
        ("captions and masks", "captions"),
        ("wd14", "auto_captions"),
        ("queue", "page_queue"),
        ("runs", "page_runs"),
        ("shortcuts", "keys"),
        ("low vram", "fit"),
        ("dark mode", "appearance_dark"),
        ("theme", "appearance_dark"),
        ("appearance", "appearance_dark"),
        ("convert model", "page_tools"),
        ("civitai", "base_model"),
        *((tool, "captions") for tool in ("caption tool", "mask tool", "dataset tool")),  # OneTrainer's names
        ("convert model tool", "page_tools"),
        ("generate captions", "auto_captions"),
        ("comfyui checkpoint", "base_model"),
    ],
)
def test_commands_and_pages_are_found_by_their_names_and_usual_words(text: str, action: str) -> None:
    assert ACTIONS.find(text).matches[0].action == action


def test_settings_come_before_commands_where_both_are_meant() -> None:
    assert ACTIONS.find("learning rate").matches[0].path == "training.learning_rate"
    assert "fit" in [m.action for m in ACTIONS.find("vram").matches[:3]]
    assert {"captions", "auto_captions"} <= {m.action for m in ACTIONS.find("caption").matches[:8]}


class GeneralWithGnomes(General):
    """The general settings, and one that has no effect yet."""

    gnomes: Annotated[int, Setting("Gnomes of a run", "How many.", group="Run", not_yet="ignored")] = 0


class ConfigWithGnomes(Config):
    """The config with such a setting."""

    general: GeneralWithGnomes = GeneralWithGnomes()


def test_a_setting_without_effect_is_not_offered_and_comes_last_where_a_file_sets_it() -> None:
    assert "general.gnomes" not in [m.path for m in Index(ConfigWithGnomes()).find("gnomes").matches]
    set_by_file = ConfigWithGnomes(general=GeneralWithGnomes(gnomes=3))
    assert "general.gnomes" in [m.path for m in Index(set_by_file).find("gnomes").matches]
    ranked = Index(set_by_file).find("run").matches
    assert ranked[-1].path == "general.gnomes"
    assert "no effect" in ranked[-1].note


def test_no_words_list_everything() -> None:
    assert len(Index(Config()).find("").matches) > 50


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


def test_a_found_page_is_opened_and_a_found_command_runs(window: Window) -> None:
    for text, page in (("queue", "queue"), ("runs", "runs")):
        finder = Finder(window.app.context)
        finder.text.set(text)
        finder.go()
        window.settle()
        assert window.app.context.navigation.page == page
    finder = Finder(window.app.context)
    finder.text.set("oom")
    assert "fit" in [m.action for m in finder.matches]
    finder.text.set("shortcuts")
    finder.go()
    assert [w.title() for w in window.app.root.winfo_children() if isinstance(w, Keys)] == ["Keys"]


def test_there_is_one_finder(window: Window) -> None:
    first = Finder(window.app.context)
    second = Finder(window.app.context)
    assert not first.winfo_exists()
    second.text.set("no such thing")
    assert "Nothing found for “no such thing”" in second.foot.cget("text")
    second.text.set("zzzz")
    assert "“zzzz”" in second.foot.cget("text")
    assert not second.matches
    window.wait_until(lambda: "unet_lr" in str(second._index._entries), "the names of other programs")
    second.text.set("ema_decay")
    assert second.matches[0].path == "training.ema.decay"
    second.go()
    window.settle()
    page: Any = window.app.shell.pages["training"]
    row = next(r for r in page.form_view.rows() if r.record.path == "training.ema.decay")
    assert row.is_shown
    assert row._reason.cget("text").startswith("No effect now: needs EMA")
    window.app.form.edit("training.ema.mode", "train_device")
    window.settle()
    assert not row._reason.winfo_ismapped()
    assert window.app.shell.bottom_bar.detail.cget("text").startswith("EMA decay: OneTrainer: ema_decay; needs EMA")
