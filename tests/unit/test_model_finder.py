"""The models on this machine are found where other programs keep them, each once, whatever lies beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub.utils import httpx

from modules.formats.repository import RepositoryFacts, repository_facts
from modules.model_finder import finder
from modules.model_finder.finder import HUB_CACHE, FoundModel, ModelSearch, rank_models
from modules.model_finder.programs import BASE_MODELS, COMFYUI, find_programs, program_at
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT
from modules.system.problem import format_size
from modules.system.secrets import HubAccess
from tests.builders.model_folders import alone_on_machine, checkpoint, comfyui, linked, webui
from trainer.jobs.models import MODELS, ModelSettings
from trainer.jobs.spec import validate_settings

SD1, Z_IMAGE = PROGRAM_ROOT / "demo/model", PROGRAM_ROOT / "demo/flow/model"


def search(folders: Sequence[Path] = (), cache: Path | None = None) -> ModelSearch:
    result = ModelSearch(BASE_MODELS, folders, cache)
    result.run()
    return result


def names(models: Sequence[FoundModel]) -> dict[str, str]:
    return {model.path.name: model.place for model in models}


@pytest.fixture
def home(home_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return alone_on_machine(home_dir, monkeypatch)


def test_each_program_is_found_in_its_usual_place_with_its_models(home: Path) -> None:
    checkpoint(comfyui(home / "ComfyUI") / "models/checkpoints/styles/xl.safetensors")
    linked(home / "ComfyUI/models/diffusers/zog", Z_IMAGE)
    checkpoint(webui(home / "stable-diffusion-webui") / "models/Stable-diffusion/one.safetensors", "sd1")
    checkpoint(webui(home / "stable-diffusion-webui-forge", forge=True) / "models/Stable-diffusion/two.safetensors")
    checkpoint(webui(home / "sd.webui/webui", forge=True) / "models/Stable-diffusion/five.safetensors")
    matrix = home / "StabilityMatrix/Data"
    checkpoint(matrix / "Models/StableDiffusion/three.safetensors")
    checkpoint(webui(matrix / "Packages/reforge", forge=True) / "models/Stable-diffusion/four.safetensors")
    found = search().found
    assert names(found) == {
        "xl.safetensors": "ComfyUI",
        "zog": "ComfyUI",
        "one.safetensors": "A1111",
        "two.safetensors": "Forge",
        "three.safetensors": "StabilityMatrix",
        "four.safetensors": "Forge",
        "five.safetensors": "Forge",  # in a folder with the name of A1111's
    }
    assert all(model.is_base_model for model in found)
    assert rank_models(found, "sd")[0].path.name == "one.safetensors"
    assert rank_models(found, "z_image")[0].path.name == "zog"
    first = found[0]
    assert (first.label, first.form) == ("Stable Diffusion XL", "Checkpoint, .safetensors")
    assert first.size_bytes == first.path.stat().st_size


def test_a_folder_is_named_once_and_may_be_any(home: Path, tmp_path: Path) -> None:
    program = comfyui(tmp_path / "elsewhere/my comfy")
    checkpoint(program / "models/checkpoints/a.safetensors")
    checkpoint(tmp_path / "loose/sub/b.safetensors", "sd1")
    assert names(search([program, tmp_path / "loose"]).found) == {"a.safetensors": "ComfyUI", "b.safetensors": "loose"}
    assert program_at(program) == program_at(program / "models")
    assert program_at(tmp_path / "loose") is None
    place = program_at(program)
    assert place is not None
    assert place.path == program
    assert place.place_for("loras") == program / "models/loras"
    assert place.place_for("embeddings") == program / "models/embeddings"


def test_further_folders_and_the_folder_itself_are_read_from_the_settings_of_programs(home: Path) -> None:
    checkpoint(home / "disk/base/a.safetensors")
    checkpoint(home / "disk/unets/b.safetensors", "sd1")
    root = comfyui(home / "chosen/in settings")
    (root / "extra_model_paths.yaml").write_text(
        f"mine:\n  base_path: {home}/disk\n  checkpoints: base\n  unet: |\n    unets\n    missing\n"
        "broken: 3\nother: {base_path: ~nobody-here/x, loras: y}\n"
    )
    (home / "settings/ComfyUI").mkdir(parents=True)
    (home / "settings/ComfyUI/config.json").write_text(json.dumps({"basePath": str(root)}))
    assert names(search().found) == {"a.safetensors": "ComfyUI", "b.safetensors": "ComfyUI"}
    (root / "extra_model_paths.yaml").write_text("- [not: what, it: should be")
    (home / "settings/StabilityMatrix").mkdir()
    (home / "settings/StabilityMatrix/library.json").write_text('{"LibraryPath": 7}')
    assert search().found == []
    assert [p.program for p in find_programs()] == [COMFYUI]


def test_the_cache_of_hugging_face_gives_the_names_of_repositories(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub"
    whole = cache / "models--owner--zog"
    snapshot = whole / "snapshots/0123"
    for file in SD1.rglob("*"):
        if file.is_file():
            linked(snapshot / file.relative_to(SD1), file)
    (whole / "refs").mkdir()
    (whole / "refs/main").write_text("0123")
    checkpoint(cache / "models--owner--files/snapshots/4567/xl.safetensors")
    (cache / "models--broken").mkdir()
    (cache / "notes.txt").write_text("x")
    folder, file = search(cache=cache).found[::-1]
    assert (folder.name, folder.place, folder.label) == ("owner/zog", HUB_CACHE, "Stable Diffusion 1.x")
    assert folder.is_base_model
    assert folder.size_bytes > 7_000_000
    assert (file.path.name, file.name) == ("xl.safetensors", str(file.path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    elsewhere = search(cache=tmp_path / "nothing here").found[-1]
    assert elsewhere.name == str(elsewhere.path), "runs would download it again by its name"
    (snapshot / "unet/diffusion_pytorch_model.safetensors").unlink()
    again = search(cache=cache).found[-1]
    assert not again.is_base_model, "its weights have not been downloaded"


def test_links_are_followed_once_and_what_cannot_be_read_is_passed_over(home: Path) -> None:
    root = comfyui(home / "ComfyUI")
    folder = root / "models/checkpoints"
    good = checkpoint(folder / "good.safetensors", "sd1")
    linked(folder / "again.safetensors", good)
    linked(folder / "loop", folder)
    linked(folder / "dead.safetensors", folder / "gone.safetensors")
    linked(webui(home / "stable-diffusion-webui") / "models/Stable-diffusion/shared", folder)
    (folder / "empty.safetensors").touch()
    (folder / "garbage.safetensors").write_bytes(b"\xff" * 64)
    (folder / "garbage.ckpt").write_bytes(b"\x80\x04c__builtin__\nexit\n.")
    (folder / "part-00001-of-00002.safetensors").touch()
    (folder / "notes.txt").touch()
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "locked").mkdir()
    checkpoint(folder / "locked/hidden.safetensors")
    (folder / "locked").chmod(0)
    result = search()
    (folder / "locked").chmod(0o700)
    assert sum(m.is_base_model for m in result.found) == (1 if result.unreadable else 2)  # root reads everything
    assert set(names(result.found)) - {"hidden.safetensors"} == {
        "again.safetensors",
        "empty.safetensors",
        "garbage.safetensors",
        "garbage.ckpt",
    }
    assert not result.is_cut


def test_a_folder_that_may_not_be_read_is_noted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = comfyui(home / "ComfyUI")
    checkpoint(root / "models/checkpoints/z.safetensors")
    (root / "models/checkpoints/locked").mkdir()
    is_model, scan = finder.index_file, os.scandir

    def refuse(folder: Path) -> None:
        if Path(folder).name == "locked":  # the tests may run as a user who may read everything
            raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(finder, "index_file", lambda folder: refuse(folder) or is_model(folder))
    monkeypatch.setattr(finder.os, "scandir", lambda folder: refuse(folder) or scan(folder))
    result = search()
    assert names(result.found) == {"z.safetensors": "ComfyUI"}
    assert result.unreadable == [root / "models/checkpoints/locked"]


def test_a_search_is_bounded_and_can_be_stopped(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = comfyui(home / "ComfyUI") / "models/checkpoints"
    for number in range(5):
        (folder / f"{number}.safetensors").touch()
    deep = folder.joinpath(*"abcdefghijk")
    deep.mkdir(parents=True)
    (deep / "too deep.safetensors").touch()
    assert len(search().found) == 5
    monkeypatch.setattr(finder, "_MAX_ENTRIES", 3)
    assert search().is_cut
    stopped = ModelSearch(BASE_MODELS)
    stopped.run(lambda _folder: stopped.stop())
    assert stopped.is_cut
    assert stopped.found == []


def test_the_size_of_a_repository_is_that_of_the_files_that_a_run_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {
        "model_index.json": 1,
        "unet/config.json": 10,
        "unet/diffusion_pytorch_model.safetensors": 1_000,
        "unet/diffusion_pytorch_model.fp16.safetensors": 500,
        "vae/diffusion_pytorch_model.safetensors": 100,
        "v1-5.ckpt": 7_000,
    }
    siblings = [SimpleNamespace(rfilename=name, size=size) for name, size in sizes.items()]
    info = SimpleNamespace(siblings=siblings, card_data={"license": "other", "license_name": "own-terms"}, gated="auto")
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: info)
    facts = repository_facts("owner/model", parts=["unet"], hub=HubAccess())
    assert facts == RepositoryFacts("owner/model", 1_011, "own-terms", True)

    for error in (OSError("no route to host"), httpx.ConnectError("[Errno -2] Name or service not known")):

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("huggingface_hub.HfApi.model_info", fail)
        with pytest.raises(DarkroomError, match="Hugging Face could not be asked about owner/model") as refused:
            repository_facts("owner/model", parts=["unet"], hub=HubAccess())
        assert "arrived" not in refused.value.advice, "no files were asked for"


def test_the_verb_lists_them_as_text_and_as_json(home: Path) -> None:
    file = checkpoint(comfyui(home / "ComfyUI") / "models/checkpoints/a.safetensors")
    (home / "ComfyUI/models/loras/not a model.safetensors").touch()

    def output(**values: object) -> str:
        return MODELS.run(validate_settings(ModelSettings, values), job=None).text  # type: ignore[arg-type]

    assert output() == (
        "1 model on this machine\n\n"
        f"ComfyUI\n  Stable Diffusion XL  Checkpoint, .safetensors  {format_size(file.stat().st_size)}  {file}\n"
    )
    assert "not a model.safetensors" in output(everything=True)
    assert "No model" in output(family="flux")
    (data,) = json.loads(output(json_text=True))
    assert (data["name"], data["family"], data["place"]) == (str(file), "sdxl", "ComfyUI")
