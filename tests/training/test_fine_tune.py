"""Training the model itself: what learns and what stays, 16-bit weights, resuming, and the files it becomes."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from modules.config.codec import encode
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.families.kinds.conversion import convert, open_source
from modules.families.kinds.identify import identify
from tests.builders.configs import laid_over, small_config
from tests.builders.pipelines import load_tiny, sample_in_diffusers, stock_pipeline
from tests.builders.runs import Ran, assert_equal_tensors, run, stop_at
from trainer.events import BackupSaved, ModelSaved, SampleReady, StepFinished
from trainer.preflight import check
from trainer.run.setup import Clocks

PROMPT = SamplePrompt(prompt="a disc", width_px=64, height_px=64, steps=3, guidance=2.0)
FULL: dict[str, Any] = {"training": {"trains": "full", "learning_rate": 1e-3}, "output": {"dtype": "float32"}}


@pytest.fixture
def config(any_model: Path, images: Path, tmp_path: Path) -> Config:
    """A fine-tune of a tiny model of each family, into a single file."""
    return laid_over(
        small_config(tmp_path, model=any_model, images=images),
        {**FULL, "output": {"dtype": "float32", "destination": str(tmp_path / "out" / "tuned.safetensors")}},
    )


@pytest.fixture
def sd_config(tiny_sd: Path, images: Path, tmp_path: Path) -> Config:
    return laid_over(small_config(tmp_path, model=tiny_sd, images=images), FULL)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """All weights of a model, by part and name, as the family loads them."""
    parts = load_tiny(folder).parts
    return {f"{n}.{key}": tensor for n, part in parts.items() for key, tensor in part.module.state_dict().items()}


def as_folder(path: Path, folder: Path) -> Path:
    """A single file as a diffusers folder, through the program's own conversion."""
    convert(open_source(path, use_ema=False), folder, "folder", dtype=None, created=NOW)
    return folder


NOW, LATER = datetime(2026, 1, 1), datetime(2026, 5, 6)


@pytest.mark.full
@pytest.mark.parametrize("form", ["single_file", "diffusers"])
def test_stock_diffusers_generates_the_trainers_sample(config: Config, tmp_path: Path, form: str) -> None:
    destination = tmp_path / ("tuned.safetensors" if form == "single_file" else "tuned")
    changes = {
        "output": {"model_format": form, "destination": str(destination)},
        "sampling": {"at_end": True, "prompts": [PROMPT.model_dump()]},
    }
    changed = laid_over(config, changes)
    assert not check(changed).errors
    ran = run(changed)
    assert ran.finished.outcome == "finished"
    assert ran.of(ModelSaved)[-1].path == str(destination)
    kind = identify(destination)
    assert kind.is_model
    assert kind.family == config.model.family.name
    folder = destination if form == "diffusers" else as_folder(destination, tmp_path / "folder")
    with Image.open(ran.of(SampleReady)[-1].path) as image:
        ours = np.asarray(image.convert("RGB")).astype(int)
    tuned = sample_in_diffusers(stock_pipeline(folder), PROMPT)
    plain = sample_in_diffusers(stock_pipeline(Path(config.model.base_model)), PROMPT)
    assert np.abs(ours - tuned).max() <= 1
    assert np.abs(ours - plain).max() > 5


@pytest.mark.daily(1)
def test_what_is_trained_changes_and_nothing_else(config: Config, tmp_path: Path) -> None:
    """Everything a gradient reaches: all of the UNet, the text layers in use; not the VAE."""
    changed = laid_over(
        config,
        {"output": {"model_format": "diffusers", "destination": str(tmp_path / "tuned")}, "training": {"epochs": 4}},
    )
    run(changed)
    before, after = weights_of(Path(config.model.base_model)), weights_of(tmp_path / "tuned")
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name].float(), after[name])}
    assert {n for n in before if n.startswith("unet.")} <= moved
    assert not {n for n in moved if n.startswith("vae.")}
    for part in ("text_encoder", "text_encoder_2"):
        layers = {n for n in before if n.startswith(f"{part}.") and ".layers.0." in n}
        assert layers <= moved


def test_a_part_that_is_not_to_learn_stays(sd_config: Config, tmp_path: Path) -> None:
    out = {"model_format": "diffusers", "destination": str(tmp_path / "tuned")}
    ran = run(laid_over(sd_config, {"parts": {"text_encoder": {"train": False}}, "output": out}))
    assert {p for s in ran.of(StepFinished) for p in s.training_parts} == {"unet"}
    before, after = weights_of(Path(sd_config.model.base_model)), weights_of(tmp_path / "tuned")
    text = [n for n in before if n.startswith("text_encoder.")]
    assert text
    assert all(torch.equal(before[n].float(), after[n]) for n in text)


def test_only_the_layers_of_a_filter_move(sd_config: Config, tmp_path: Path) -> None:
    """With checkpointing: blocks without any trained weight are among the checkpointed ones."""
    changes = {
        "output": {"model_format": "diffusers", "destination": str(tmp_path / "tuned")},
        "parts": {"text_encoder": {"train": False}, "unet": {"checkpointing": "block"}},
        "training": {
            "layer_filter": "custom", "layer_filter_names": r"attn2\.to_[kv]$, ^conv_out", "layer_filter_regex": True,
        },
    }  # fmt: skip
    changed = laid_over(sd_config, changes)
    report = check(changed)
    assert not report.errors
    run(changed)
    before, after = weights_of(Path(sd_config.model.base_model)), weights_of(tmp_path / "tuned")
    moved = {name for name in before if not torch.equal(before[name].float(), after[name])}
    expected = {n for n in before if n.startswith("unet.") and re.search(r"attn2\.to_[kv]\.|unet\.conv_out", n)}
    assert moved == expected
    [part] = report.preview.trained if report.preview else []
    assert {f"unet.{layer}" for layer in part.layers} == {name.rpartition(".")[0] for name in expected}
    assert part.num_weights == sum(before[name].numel() for name in expected)


@pytest.mark.full
def test_a_filter_with_a_fused_backward_pass_and_offloaded_layers_trains_the_same(
    sd_config: Config, tmp_path: Path
) -> None:
    changes = {
        "output": {"model_format": "diffusers", "destination": str(tmp_path / "plain")},
        "parts": {"text_encoder": {"train": False}, "unet": {"checkpointing": "block"}},
        "training": {"epochs": 1, "layer_filter": "attention", "clip_grad_norm": None},
    }
    plain = laid_over(sd_config, changes)
    optimizer = {**encode(plain)["training"]["optimizer"], "fused_back_pass": True}
    saving = laid_over(
        plain,
        {
            "output": {"destination": str(tmp_path / "saving")},
            "parts": {"unet": {"offload_fraction": 0.7}},
            "training": {"optimizer": optimizer},
        },
    )
    for config in (plain, saving):
        assert run(config).finished.outcome == "finished"
    folders = (Path(sd_config.model.base_model), tmp_path / "plain", tmp_path / "saving")
    before, one, other = map(weights_of, folders)
    assert all(torch.equal(one[name], other[name]) for name in one)
    moved = {name for name in before if not torch.equal(before[name].float(), one[name])}
    assert moved == {name for name in before if name.startswith("unet.") and "attn" in name}


def test_a_layer_name_that_matches_nothing_is_an_error(sd_config: Config) -> None:
    changes: dict[str, Any] = {"layer_filter": "custom", "layer_filter_names": "attn2, atn1"}
    for trains, path in (("full", "training.layer_filter_names"), ("adapter", "adapter.custom_layers")):
        named = laid_over(
            sd_config,
            {
                "training": {"trains": trains, **changes},
                "adapter": {"layers": "custom", "custom_layers": "attn2, atn1"},
            },
        )
        errors = [p for p in check(named).errors if p.path == path]
        assert [p.message for p in errors] == ["No layer's name contains 'atn1'."]


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("dtype", "low_precision_updates", "kept"),
    [("float32", "master", torch.float32), ("bfloat16", "master", torch.float32),
     ("float16", "master", torch.float32), ("bfloat16", "stochastic", torch.bfloat16)],
)  # fmt: skip
def test_stopped_and_resumed_ends_bit_equal(
    sd_config: Config, tmp_path: Path, dtype: str, low_precision_updates: str, kept: torch.dtype
) -> None:
    hard = laid_over(
        sd_config,
        {
            "parts": {p: {"dtype": dtype, "checkpointing": "block"} for p in ("unet", "text_encoder")},
            "training": {
                "low_precision_updates": low_precision_updates,
                "ema": {"mode": "train_device", "decay": 0.9},
                "learning_rate": 1e-4,
                "accumulation_steps": 2,
            },
        },
    )
    straight = run(laid_over(hard, {"general": {"workspace_dir": str(tmp_path / "straight")}}))

    first = run(hard, on_event=stop_at(1))
    assert first.finished.outcome == "stopped"
    resumed = run(hard, resume_from=Path(first.finished.backup_path))
    assert_equal_tensors(straight.weights, resumed.weights)
    assert {t.dtype for t in straight.weights.values()} == {kept}
    for name in ("ema.safetensors", "optimizer.safetensors"):
        assert_equal_tensors(*(load_file(Path(r.finished.backup_path) / name) for r in (straight, resumed)))


def losses_of(ran: Ran) -> list[float]:
    return [s.loss for s in ran.of(StepFinished) if s.loss is not None]


@pytest.mark.full
@pytest.mark.parametrize("low_precision_updates", ["master", "stochastic"])
def test_bfloat16_weights_learn_about_as_well_as_float32(sd_config: Config, low_precision_updates: str) -> None:
    """A rate at which plain bfloat16 stands still: updates of 1e-5 on weights of about 0.1."""
    slow = laid_over(
        sd_config, {"training": {"learning_rate": 1e-5, "epochs": 6, "low_precision_updates": low_precision_updates}}
    )
    exact = run(slow).weights
    halved = laid_over(slow, {"parts": {p: {"dtype": "bfloat16"} for p in ("unet", "text_encoder")}})
    start = load_tiny(Path(sd_config.model.base_model)).parts
    ours = run(halved).weights
    drift, wanted = 0.0, 0.0
    for name, value in ours.items():
        part, _, key = name.partition(".")
        base = start[part].module.get_parameter(key).detach()
        wanted += float(((exact[name] - base) ** 2).sum())
        drift += float(((exact[name] - base) * (value.float() - base.bfloat16().float())).sum())
    assert drift / wanted > 0.5, "the weights have not gone where float32 would have gone"


@pytest.mark.daily(1)
def test_frozen_in_mid_run_with_checkpointing(config: Config) -> None:
    parts = [p for p in ("text_encoder", "text_encoder_2") if (Path(config.model.base_model) / p).is_dir()]
    frozen = {
        p: {"stop_after": {"n": 1, "unit": "epoch"}, "checkpointing": "block", "dtype": "bfloat16"} for p in parts
    }
    changed = laid_over(
        config,
        {
            "parts": {**frozen, "unet": {"checkpointing": "whole"}},
            "training": {"epochs": 3},
            "backup": {"every": {"n": 1, "unit": "epoch"}, "keep": 0},
        },
    )
    ran = run(changed)
    assert ran.finished.outcome == "finished"
    one, *_, last = [load_file(Path(b.path) / "weights.safetensors") for b in ran.of(BackupSaved)]
    text = [n for n in one if n.startswith("text_encoder")]
    assert text
    assert all(torch.equal(one[n], last[n]) for n in text)
    assert any(not torch.equal(one[n], last[n]) for n in one if n.startswith("unet."))
    assert ran.of(StepFinished)[-1].training_parts == ("unet",)


def test_a_broken_result_replaces_no_model(sd_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = {"destination": str(tmp_path / "tuned.safetensors")}
    changed = laid_over(sd_config, {"output": out})
    run(changed)
    good = (tmp_path / "tuned.safetensors").read_bytes()
    from trainer.export.model import ModelExporter

    plain = ModelExporter.save

    def broken(self: ModelExporter, path: Path, values: dict[str, torch.Tensor], *rest: Any, **facts: Any) -> None:
        first = next(iter(values))
        plain(self, path, {**values, first: torch.full_like(values[first], float("nan"))}, *rest, **facts)

    monkeypatch.setattr(ModelExporter, "save", broken)
    ran = run(changed)
    assert "NaN or infinite" in ran.ending.message
    assert (tmp_path / "tuned.safetensors").read_bytes() == good
    assert [p.name for p in tmp_path.iterdir() if "tuned" in p.name] == ["tuned.safetensors"]


@pytest.mark.parametrize(
    ("destination", "form", "words"),
    [("model.safetensors", "diffusers", "is a file, but"), ("folder", "single_file", "does not end in .safetensors"),
     ("full", "diffusers", "folder without a model")],
)  # fmt: skip
def test_a_destination_that_does_not_fit_the_format_is_reported(
    sd_config: Config, tmp_path: Path, destination: str, form: str, words: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "holiday.jpg").write_bytes(b"precious")
    out = {"destination": str(tmp_path / destination), "model_format": form}
    errors = check(laid_over(sd_config, {"output": out})).errors
    assert [e.path for e in errors] == ["output.destination"]
    assert words in errors[0].message


def test_float16_is_not_rounded_stochastically(sd_config: Config) -> None:
    changed = laid_over(
        sd_config, {"training": {"low_precision_updates": "stochastic"}, "parts": {"unet": {"dtype": "float16"}}}
    )
    assert [e.path for e in check(changed).errors] == ["training.low_precision_updates"]


@pytest.mark.daily(1)
@pytest.mark.parametrize("trains", ["adapter", "full"])
def test_trigger_words_and_an_image_are_in_the_file(sd_config: Config, tmp_path: Path, trains: str) -> None:
    changed = laid_over(
        sd_config,
        {
            "training": {"trains": trains, "epochs": 1},
            "sampling": {"at_start": True, "at_end": True, "prompts": [PROMPT.model_dump()]},
            "output": {"trigger_words": " a zog ", "thumbnail": True, "destination": str(tmp_path / "x.safetensors")},
        },
    )
    ran = run(changed)
    with safe_open(ran.finished.model_path, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["modelspec.trigger_phrase"] == "a zog"
    head, _, data = metadata["modelspec.thumbnail"].partition(",")
    assert head == "data:image/jpeg;base64"
    encoded = BytesIO()
    with Image.open(ran.of(SampleReady)[-1].path) as sample:
        sample.convert("RGB").save(encoded, format="JPEG", quality=85)
    assert b64decode(data) == encoded.getvalue(), "not the newest sample"
    plain = run(laid_over(changed, {"output": {"trigger_words": "", "thumbnail": False}}))
    with safe_open(plain.finished.model_path, framework="pt") as file:
        assert not {"modelspec.trigger_phrase", "modelspec.thumbnail"} & file.metadata().keys()


def test_a_fine_tune_as_a_folder_keeps_the_facts_of_its_run(sd_config: Config, tmp_path: Path) -> None:
    facts = {"trigger_words": "a zog", "model_format": "diffusers", "destination": str(tmp_path / "my.model")}
    ran = run(laid_over(sd_config, {"training": {"epochs": 1}, "output": facts}), clocks=Clocks(now=lambda: NOW))
    [file] = convert(
        open_source(Path(ran.finished.model_path)), tmp_path / "b.safetensors", "single", dtype=None, created=LATER
    )
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    assert metadata["modelspec.trigger_phrase"] == "a zog"
    assert metadata["modelspec.title"] == "my.model"
    assert metadata["modelspec.date"] == NOW.isoformat()
    assert (metadata["ss_steps"], metadata["ss_num_epochs"]) == (str(ran.finished.step), "1")
    assert json.loads(metadata["darkroom_config"])["training"]["epochs"] == 1


def test_a_v_prediction_sdxl_gets_its_yaml_also_as_the_best(tiny_sdxl: Path, images: Path, tmp_path: Path) -> None:
    config = laid_over(
        small_config(tmp_path, model=tiny_sdxl, images=images),
        {
            **FULL,
            "concepts": [{"path": str(images)}, {"path": str(images), "kind": "validation"}],
            "model": {"family": {"prediction_type": "v_prediction", "zero_terminal_snr": "on"}},
            "validation": {"every": {"n": 1, "unit": "epoch"}, "num_timesteps": 1, "keep_best": True, "result": "best"},
            "output": {"dtype": "float32", "destination": str(tmp_path / "v.safetensors")},
        },
    )
    ran = run(config)
    found = identify(Path(ran.finished.model_path))
    assert (found.prediction, found.zero_snr) == ("v_prediction", True)
    assert found.facts["prediction_from"] == "v_pred tensor, v.yaml"
    final = ran.of(ModelSaved)[-1]
    assert final.is_final
    assert final.loading == {"diffusers": "no", "ComfyUI": "no", "A1111": "?", "Forge": "?"}  # it is tiny


def test_with_channels_last_the_same_is_learned_and_saved(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    """Results differ in rounding alone, and files have no trace of it."""
    runs, results = [], []
    for choice in ("off", "on"):
        folder = tmp_path / choice
        config = laid_over(small_config(folder, model=tiny_sd, images=images), FULL)
        ran = run(laid_over(config, {"model": {"channels_last": choice}, "training": {"epochs": 1}}))
        runs.append([s.loss for s in ran.of(StepFinished)])
        results.append(load_file(ran.of(ModelSaved)[-1].path))
    assert runs[0] == pytest.approx(runs[1], rel=1e-4)
    plain, changed = results
    assert plain.keys() == changed.keys()
    assert {n: t.shape for n, t in plain.items()} == {n: t.shape for n, t in changed.items()}
    different = [n for n, t in plain.items() if not torch.allclose(t, changed[n], rtol=1e-3, atol=3e-3)]
    assert different == []
    assert any(not torch.equal(t, changed[n]) for n, t in plain.items())
