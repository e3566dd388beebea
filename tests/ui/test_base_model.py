"""The window with the three ways to a base model, and the buttons that open it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from modules.config.schema import Config
from modules.families.kinds.file_kind import FileKind
from modules.formats.repository import MissingModelError, RepositoryFacts
from modules.model_finder.finder import FoundModel
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT
from tests.builders.model_folders import alone_on_machine, checkpoint, comfyui
from tests.ui.conftest import Window
from tests.ui.driving import walk
from tests.ui.test_secrets_dialog import click
from trainer.events import RunFailed
from ui.app import run_ends
from ui.features.base_model.model import choice_of
from ui.features.base_model.window import BaseModelWindow
from ui.features.other_family import OtherFamily
from ui.features.tokens import SecretsDialog
from ui.forms.model import Source
from ui.widgets.panel import Text


@pytest.fixture
def comfy(home_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of ComfyUI with a model of SD 1.x, one of SDXL, and a broken file."""
    root = comfyui(alone_on_machine(home_dir, monkeypatch) / "ComfyUI")
    folder = root / "models/checkpoints"
    checkpoint(folder / "xl.safetensors", "sdxl")
    checkpoint(folder / "one.safetensors", "sd1")
    (folder / "broken.safetensors").touch()
    return root


def open_dialog(window: Window) -> BaseModelWindow:
    window.app.context.actions.run("base_model")
    (dialog,) = (w for w in window.app.root.winfo_children() if isinstance(w, BaseModelWindow))
    window.wait_until(lambda: not dialog.found.is_searching and dialog.download.repositories, "the search")
    window.settle()
    return dialog


def shown(dialog: BaseModelWindow) -> list[str]:
    return [dialog.table.tree.item(row, "text").strip() for row in dialog.table.tree.get_children()]


def test_a_model_that_is_found_becomes_the_base_model(window: Window, comfy: Path, tmp_path: Path) -> None:
    context = window.app.context
    context.form.edit("model.variant", "inpainting")
    dialog = open_dialog(window)
    assert shown(dialog) == ["one.safetensors", "xl.safetensors", "broken.safetensors"]
    note = next(w for w in walk(dialog.table) if isinstance(w, Text))
    assert "ComfyUI" in note.cget("text")
    assert not note.winfo_ismapped()
    dialog.table.set_rows([])
    dialog.update_idletasks()  # no turn of the pump: what is still being read would fill the table again
    assert note.winfo_ismapped(), "an empty table is explained"
    dialog._follow()
    assert dialog.status.cget("text") == "2 models in ComfyUI. 1 file cannot be used."
    dialog.table.select([2])
    window.settle()
    assert "broken.safetensors" in dialog.where.cget("text")
    assert dialog.use_found.cget("state") == "disabled"
    checkpoint(tmp_path / "mine/two.safetensors", "sd1")
    window.asked.answers["ask_folder"] = tmp_path / "mine"
    click(dialog.folder_button)
    window.wait_until(lambda: "two.safetensors" in shown(dialog), "the other folder")
    window.settle()
    assert context.preferences.now.model_folders == (str(tmp_path / "mine"),)
    dialog.table.select([0])
    window.settle()
    click(dialog.use_found)
    window.settle()
    assert not dialog.winfo_exists()
    config = context.form.config
    assert config.model.base_model == str(comfy / "models/checkpoints/one.safetensors")
    assert config.model.variant == "text_to_image"
    context.form.undo()
    assert context.form.config.model.variant == "inpainting"


def test_a_model_of_another_family_leads_to_the_move_with_it(window: Window, comfy: Path) -> None:
    dialog = open_dialog(window)
    dialog.table.select([1])
    dialog.choose_found()
    (move,) = (w for w in window.app.root.winfo_children() if isinstance(w, OtherFamily))
    window.wait_until(lambda: move.moving.result is not None, "the presets")
    window.settle()
    assert move.moving.family == "sdxl"
    click(move.apply_button)
    window.settle()
    config = window.app.form.config
    assert config.family.name == "sdxl"
    assert config.model.base_model == str(comfy / "models/checkpoints/xl.safetensors")


def test_a_file_of_ones_own_has_to_be_a_model(window: Window, comfy: Path, tmp_path: Path) -> None:
    dialog = open_dialog(window)
    (tmp_path / "lora.safetensors").touch()
    window.asked.answers["ask_file"] = tmp_path / "lora.safetensors"
    dialog.choose_own(window.asked.ask_file, ())
    window.wait_until(lambda: dialog.message.cget("text"), "the reason")
    assert "lora.safetensors" in dialog.message.cget("text")
    window.asked.answers["ask_folder"] = PROGRAM_ROOT / "demo/model"
    dialog.choose_own(window.asked.ask_folder)
    window.wait_until(lambda: not dialog.winfo_exists(), "the choice")
    assert window.app.form.config.model.base_model == "demo/model"


DENOISER = FoundModel(
    Path("/models/dev.gguf"), "/models/dev.gguf", "ComfyUI", FileKind("part", "A transformer.", "flux", "flux_dev"), 1
)


@pytest.mark.parametrize("answer", ["files", "base", None])
def test_a_denoiser_alone_comes_with_files_of_the_other_parts_or_is_one_part(
    window: Window, comfy: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None
) -> None:
    parts = {name: Path(f"/models/{name}.safetensors") for name in ("text_encoder", "text_encoder_2", "vae")}
    monkeypatch.setattr("ui.features.base_model.window.find_parts", lambda *_: parts)
    flux = Config.model_validate({"model": {"family": "flux", "base_model": "owner/flux"}})
    window.app.form.load(flux, Source("flux"))
    dialog = open_dialog(window)
    window.asked.answers["choose"] = answer
    dialog._use_model(DENOISER)
    window.wait_until(lambda: window.asked.asked("choose"), "the question")
    window.settle()
    assert "VAE: vae.safetensors" in window.asked.asked("choose")[0][1]
    assert bool(dialog.winfo_exists()) == (answer is None)
    config = window.app.form.config
    files = {part.name: config.part(part.name).file for part in config.family.parts}
    nothing = dict.fromkeys(files, "")
    expected = {
        "files": {**nothing, **{name: str(path) for name, path in parts.items()}},
        "base": {**nothing, "transformer": "/models/dev.gguf"},
    }
    assert files == expected.get(str(answer), nothing)
    assert config.model.base_model == ("/models/dev.gguf" if answer == "files" else "owner/flux")


def test_without_files_for_all_parts_a_denoiser_is_one_part(window: Window, comfy: Path) -> None:
    assert choice_of(DENOISER).settings == {"parts.transformer.file": "/models/dev.gguf"}
    dialog = open_dialog(window)
    dialog._use_model(DENOISER)
    window.wait_until(lambda: not dialog.winfo_exists(), "the choice")
    assert window.asked.asked("choose") == []
    (move,) = (w for w in window.app.root.winfo_children() if isinstance(w, OtherFamily))
    window.wait_until(lambda: move.moving.result is not None, "the presets")
    assert move.moving.result is not None
    assert move.moving.result.config.part("transformer").file == "/models/dev.gguf"


def test_a_refused_repository_has_the_buttons_that_give_access(
    window: Window, comfy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same question can be asked again, also of the same repository; it used to be kept for good."""
    gated = MissingModelError("owner/gated", "It is gated.", advice="Accept its terms.", remedy="tokens")
    answers: list[RepositoryFacts | DarkroomError] = [gated, RepositoryFacts("owner/gated", 10**9, "open", False)]

    def answer(*_: object, **__: object) -> RepositoryFacts:
        match answers.pop(0):
            case RepositoryFacts() as facts:
                return facts
            case error:
                raise error

    pages: list[str] = []
    monkeypatch.setattr("ui.features.base_model.model.repository_facts", answer)
    monkeypatch.setattr("webbrowser.open", pages.append)
    dialog = open_dialog(window)
    assert dialog.download.text("") == "", "nothing has been asked"
    dialog.repository.set("gated")
    click(dialog.ask_button)
    refusal = "gated is not the name of a repository. Enter it as owner/model."
    window.wait_until(lambda: dialog.facts.cget("text") == refusal, "the refusal")
    assert not dialog.token_button.winfo_ismapped()
    assert dialog.page_button.cget("state") == "disabled"
    dialog.repository.set("owner/gated")
    click(dialog.ask_button)
    window.wait_until(dialog.token_button.winfo_ismapped, "the refusal")
    assert dialog.facts.cget("text") == "It is gated. Accept its terms."
    click(dialog.page_button)
    assert pages == ["https://huggingface.co/owner/gated"]
    monkeypatch.setattr("ui.features.tokens.SecretsDialog.ask", SecretsDialog.close)
    click(dialog.token_button)
    window.wait_until(lambda: "Licence: open" in dialog.facts.cget("text"), "the second answer")
    window.wait_until(lambda: not dialog.token_button.winfo_ismapped())


def test_a_download_shows_its_size_its_licence_and_the_free_space(
    window: Window, comfy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {
        "stable-diffusion-v1-5/stable-diffusion-v1-5": RepositoryFacts("sd", 4_300_000_000, "openrail", False),
        "owner/large": RepositoryFacts("owner/large", 10**18, "", True),
    }
    asked: list[tuple[str, list[str]]] = []

    def answer(name: str, *, parts: list[str], hub: object) -> RepositoryFacts:
        asked.append((name, parts))
        if name not in facts:
            raise DarkroomError("Hugging Face could not be asked.", advice="Check the connection.")
        return facts[name]

    monkeypatch.setattr("ui.features.base_model.model.repository_facts", answer)
    dialog = open_dialog(window)
    assert asked == []
    assert dialog.repository.get() == "stable-diffusion-v1-5/stable-diffusion-v1-5"
    window.wait_until(lambda: dialog.facts.cget("text").startswith("About 4.3 GB to download, "), "the estimate")
    click(dialog.ask_button)
    window.wait_until(lambda: "openrail" in dialog.facts.cget("text"), "the facts")
    assert dialog.facts.cget("text").startswith("4.3 GB to download, ")
    assert "Licence: openrail, to read at huggingface.co/" in dialog.facts.cget("text")
    assert asked == [("stable-diffusion-v1-5/stable-diffusion-v1-5", ["unet", "text_encoder", "vae"])]
    labels = [dialog.repository_menu().entrycget(n, "label") for n in range(2)]
    assert all(label.startswith("Stable Diffusion 1 and 2:") for label in labels)
    dialog.repository.set("owner/large")
    click(dialog.ask_button)
    window.wait_until(lambda: "not enough space" in dialog.facts.cget("text"), "the facts")
    assert "huggingface.co/owner/large" in dialog.facts.cget("text")
    dialog.repository.set(sdxl := "stabilityai/stable-diffusion-xl-base-1.0")
    window.wait_until(lambda: dialog.facts.cget("text").startswith("About "), "the estimate")
    size = dialog.facts.cget("text")
    click(dialog.ask_button)
    wanted = f"{size} Hugging Face could not be asked. Check the connection."
    window.wait_until(lambda: dialog.facts.cget("text") == wanted, f"the size of {sdxl} and why no more is known")
    dialog.repository.set("no name of a repository")
    click(dialog.use_download)
    assert "not the name of a repository" in dialog.message.cget("text")
    dialog.repository.set("owner/large")
    window.app.form.edit("model.offline", True)
    click(dialog.use_download)
    window.settle()
    model = window.app.form.config.model
    assert (model.base_model, model.offline) == ("owner/large", False)


def test_what_is_missing_has_a_button_that_opens_the_window(ready: Window, comfy: Path) -> None:
    context = ready.app.context
    context.form.edit("model.base_model", "gone.safetensors")
    ready.settle()
    bar = ready.app.shell.findings_bar
    assert bar.remedy_buttons["base_model"].winfo_manager()
    click(bar.remedy_buttons["base_model"])
    (dialog,) = (w for w in ready.app.root.winfo_children() if isinstance(w, BaseModelWindow))
    dialog.found.stop()
    dialog.close()
    context.form.edit("model.base_model", "demo/model")
    ready.settle()
    assert not bar.winfo_ismapped()


@pytest.mark.parametrize("missing", ["demo/model", "a/sampling-model"])
def test_a_download_that_fails_offers_another_base_model(ready: Window, comfy: Path, missing: str) -> None:
    ready.app.context.form.edit("model.base_model", "demo/model")
    ready.asked.answers |= {"confirm_start": True, "show_failure": missing == "demo/model"}
    ready.app.context.actions.run("start")
    ready.wait_until(lambda: ready.engine.run, "the run")
    assert ready.engine.run is not None
    ready.engine.run.end(
        RunFailed("The base model cannot be downloaded.", "Choose.", missing_model=missing, remedy="base_model")
    )
    ready.wait_until(lambda: ready.asked.asked("show_failure"), "the dialog")
    ((failure,),) = ready.asked.asked("show_failure")
    is_base_model = missing == "demo/model"
    assert bool(failure.offer) == is_base_model
    assert any(isinstance(w, BaseModelWindow) for w in ready.app.root.winfo_children()) == is_base_model


def test_a_failure_is_shown_with_the_config_of_its_run(
    ready: Window, comfy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run may have begun before the details on a slow drive are read."""
    can_read, read, context = threading.Event(), run_ends.run_failure, ready.app.context
    monkeypatch.setattr(run_ends, "run_failure", lambda *failed: read(*failed) if can_read.wait(60) else None)
    ready.asked.answers |= {"confirm_start": True}
    for model in ("demo/model", "./demo/model"):
        context.form.edit("model.base_model", model)
        ready.engine.run = None
        context.actions.run("start")
        ready.wait_until(lambda: ready.engine.run, "the run")
        if model == "demo/model":
            ready.engine.run.end(RunFailed("No model.", "Choose.", missing_model=model, remedy="base_model"))
            ready.wait_until(lambda: not context.session.is_active, "its end")
    can_read.set()
    ready.wait_until(lambda: ready.asked.asked("show_failure"), "the dialog")
    assert ready.asked.asked("show_failure")[0][0].offer


def test_the_generate_page_follows_a_model_of_another_family_at_once(window: Window, comfy: Path) -> None:
    page = window.open_page("sample")
    context = page.page_context  # type: ignore[attr-defined]
    context.links.choose_base_model(context)
    (dialog,) = (w for w in window.app.root.winfo_children() if isinstance(w, BaseModelWindow))
    window.wait_until(lambda: len(shown(dialog)) == 3, "the search")
    dialog.table.select([shown(dialog).index("xl.safetensors")])
    dialog.choose_found()
    window.wait_until(lambda: context.form.config.family.name == "sdxl", "the family of the file")
    assert window.app.form.config.family.name == "sd"
    assert not any(isinstance(w, OtherFamily) for w in window.app.root.winfo_children())
