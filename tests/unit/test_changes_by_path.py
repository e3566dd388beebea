"""--set: what is said of a setting that is not there, and where its files are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.config.schema import Config
from modules.settings.edit import get_path
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT
from trainer.jobs.config import apply_changes


@pytest.mark.parametrize(
    ("change", "guess"),
    [
        ("training.batchsize=3", "Did you mean training.batch_size? "),
        ("epochs=3", "Did you mean training.epochs? "),
        ("learning_rate=3", "Did you mean training.learning_rate or embeddings.learning_rate? "),
        ("nonsense=1", ""),
    ],
)
def test_a_setting_that_is_not_there_is_guessed(change: str, guess: str) -> None:
    with pytest.raises(DarkroomError) as caught:
        apply_changes(Config(), [change])
    assert caught.value.message.startswith(f"--set {change}: There is no setting ")
    assert caught.value.advice == f"{guess}All settings are listed by python -m trainer schema --markdown."


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ("concepts.0.path=cats", "concepts.0.path", "{here}/cats"),
        ('concepts=[{"path": "cats", "name": "dogs"}]', "concepts.0.path", "{here}/cats"),
        ("output.destination=out/cat.safetensors", "output.destination", "{here}/out/cat.safetensors"),
        ("output.destination=", "output.destination", ""),
        ("general.workspace_dir=../w", "general.workspace_dir", "{here}/../w"),
        ("general.workspace_dir=/w", "general.workspace_dir", "/w"),
        (f"general.workspace_dir={PROGRAM_ROOT}/w", "general.workspace_dir", "w"),
        ("model.base_model=mine", "model.base_model", "{here}/mine"),
        ("model.base_model=someone/model", "model.base_model", "someone/model"),
        ("parts.unet.file=https://host/m.safetensors", "parts.unet.file", "https://host/m.safetensors"),
        ("adapter.start_from=cat.safetensors", "adapter.start_from", "{here}/cat.safetensors"),
        ('concepts=[{"image": {"masks_folder": "masks"}}]', "concepts.0.image.masks_folder", "{here}/masks"),
        ('adapter={"name": "lora", "start_from": "cat"}', "adapter.start_from", "{here}/cat"),
        ('parts={"unet": {"file": "mine"}}', "parts.unet.file", "{here}/mine"),
        ('training.vae={"vgg_file": "vgg.pth"}', "training.vae.vgg_file", "{here}/vgg.pth"),
        ("concepts_file=cats.json", "concepts_file", "cats.json"),
    ],
)
def test_its_files_are_relative_to_the_folder_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, path: str, value: str
) -> None:
    """They were relative to the program's folder, as those in configs are."""
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("DARKROOM_CALLER_DIR", str(tmp_path))
    config = Config.model_validate({"concepts": [{"path": "dogs"}]})
    assert get_path(apply_changes(config, [change]), path) == value.format(here=tmp_path)


def test_no_other_text_is_taken_for_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cats").mkdir()
    monkeypatch.setenv("DARKROOM_CALLER_DIR", str(tmp_path))
    changes = ['concepts=[{"path": "", "name": "cats"}]', "general.notes=cats", 'sampling.prompts=[{"prompt": "cats"}]']
    config = apply_changes(Config(), changes)
    texts = json.dumps([config.concepts[0].name, config.general.notes, config.sampling.prompts[0].prompt])
    assert texts == '["cats", "cats", "cats"]'
