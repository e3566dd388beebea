"""Train this dataset on another family: the window with its choices, and the config that it loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from modules.config.presets import save_preset
from modules.config.schema import Config
from modules.families.registry import newest_families
from modules.system.hardware import GpuMemory
from tests.ui.conftest import Window
from tests.ui.driving import pick
from tests.ui.test_fitting import AtOnce
from tests.ui.test_secrets_dialog import click
from ui.features.other_family import Moving, OtherFamily
from ui.forms.model import FormModel, Source

SDXL = {
    "model": {"family": {"name": "sdxl", "clip_skip": 1}},
    "training": {"epochs": 4, "loss": {"weighting": "min_snr"}},
    "sampling": {"prompts": [{"prompt": "a zog", "sampler": "euler_a"}]},
}


@pytest.fixture(autouse=True)
def _card_of_16_gb(monkeypatch: pytest.MonkeyPatch) -> None:
    card = GpuMemory(16 << 30, 16 << 30)
    monkeypatch.setattr("ui.features.other_family.gpu_memory", lambda _device: card)


def moving(config: Config, background: AtOnce) -> Moving:
    return Moving(FormModel(config, source=Source("#mine")), background)  # type: ignore[arg-type]


def test_each_family_offers_its_presets_and_begins_with_the_best_for_the_card() -> None:
    background = AtOnce()
    move = moving(Config.model_validate(SDXL), background)
    assert move.result is None
    assert "Reading" in move.summary
    save_preset(Config.model_validate({"model": {"family": "flux"}}), "my flux")
    background.finish()
    assert list(move.families) == [name for name in newest_families() if name != "sdxl"]
    assert move.family == newest_families()[0]
    move.set_family("flux")
    assert move.preset == "#flux LoRA 16 GB"
    assert "my flux" in move.presets
    assert not any("demo" in name for name in move.presets)
    move.set_preset("my flux")
    assert move.result is not None
    assert move.result.config.training.precision == Config().training.precision
    assert any("Min-SNR" in note for note in move.notes)
    assert {c.path for c in move.changes} >= {"model.family", "training.loss.weighting"}


def test_it_begins_with_the_newest_family_that_has_a_preset_for_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    card = GpuMemory(6 << 30, 6 << 30)
    monkeypatch.setattr("ui.features.other_family.gpu_memory", lambda _device: card)
    background = AtOnce()
    move = moving(Config.model_validate(SDXL), background)
    background.finish()
    assert move.family == "anima"
    assert move.preset == "#anima LoRA 6 GB"


def test_a_config_of_the_chosen_family_chooses_another() -> None:
    background = AtOnce()
    form = FormModel(Config.model_validate(SDXL))
    move = Moving(form, background)  # type: ignore[arg-type]
    background.finish()
    move.set_family("flux")
    form.load(Config.model_validate({"model": {"family": "flux"}}), Source())
    move.compute()
    assert move.family == newest_families()[0]
    assert "flux" not in move.families


def test_the_window_loads_the_config_and_an_undo_brings_the_one_before_back(
    open_window: Callable[..., Window], tmp_path: Path
) -> None:
    window = open_window()
    context = window.app.context
    context.form.load(Config.model_validate(SDXL), Source("mine", tmp_path / "mine.json", "file"))
    before = context.form.document
    context.actions.run("other_family")
    window.settle()
    (dialog,) = (w for w in window.app.root.winfo_children() if isinstance(w, OtherFamily))
    window.wait_until(lambda: dialog.moving.result is not None, "the presets")
    window.settle()
    pick(dialog.family_choice, "z_image")
    window.settle()
    assert dialog.preset_choice.get() == "#z-image LoRA 16 GB"
    assert "Min-SNR" in dialog.notes.cget("text")
    assert "1 sample prompt, 4 epochs" in dialog.summary.cget("text")
    assert dialog.table.tree.get_children()
    click(dialog.apply_button)
    window.settle()
    assert not dialog.winfo_exists()
    config = context.form.config
    assert (config.family.name, config.training.epochs) == ("z_image", 4)
    assert config.sampling.prompts[0].prompt == "a zog"
    assert context.form.source == Source("mine on Z-Image")
    assert any("Min-SNR" in f.problem.message for f in context.findings.items)
    context.form.undo()
    assert context.form.document == before
