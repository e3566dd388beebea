"""Single-file base models: they are identified before the run, and load and train like their folders."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.families.kinds.conversion import convert, open_source
from modules.system.errors import DarkroomError
from tests.builders.configs import family_of, laid_over, small_config
from tests.builders.pipelines import load_tiny, sample_in_diffusers, stock_pipeline
from tests.builders.runs import assert_equal_tensors, run
from trainer.events import ModelSaved, SampleReady
from trainer.preflight import check
from trainer.run.reading import load_family
from ui.loop.wording import preview_lines

NOW = datetime(2026, 1, 1)


@pytest.fixture
def single_file(any_model: Path, tmp_path: Path) -> Path:
    """A tiny model of each family in the original layout."""
    path = tmp_path / "model.safetensors"
    convert(open_source(any_model), path, "single", dtype=None, created=NOW)
    return path


@pytest.fixture
def config(single_file: Path, any_model: Path, images: Path, tmp_path: Path) -> Config:
    small = small_config(tmp_path, model=any_model, images=images)
    return laid_over(small, {"model": {"base_model": str(single_file)}, "training": {"epochs": 1}})


def test_it_is_the_folder_s_model(config: Config, any_model: Path) -> None:
    from_file, from_folder = load_family(config.model, config.part), load_tiny(any_model)
    assert from_file.parts.keys() == from_folder.parts.keys()
    for name, part in from_file.parts.items():
        assert_equal_tensors(part.module.state_dict(), from_folder.parts[name].module.state_dict())
        assert not any(p.requires_grad for p in part.module.parameters())
    assert from_file.process.prediction_type == from_folder.process.prediction_type
    assert from_file.text_identity() == from_folder.text_identity()
    assert from_file.image_identity() == from_folder.image_identity()


def test_it_is_identified_before_the_run(config: Config, any_model: Path) -> None:
    report = check(config)
    assert not report.errors
    assert report.preview is not None
    name = {"sd": "Stable Diffusion 1", "sdxl": "Stable Diffusion XL"}[family_of(any_model)]
    assert name in report.preview.model
    assert preview_lines(report.preview)[0] == report.preview.model


@pytest.mark.daily(1)
def test_it_trains_to_the_same_weights_as_the_folder(config: Config, any_model: Path, tmp_path: Path) -> None:
    other = {"model": {"base_model": str(any_model)}, "general": {"workspace_dir": str(tmp_path / "other")}}
    assert_equal_tensors(run(config).weights, run(laid_over(config, other)).weights)


def test_a_pickle_of_another_size_than_the_published_is_refused_in_words(config: Config, single_file: Path) -> None:
    ckpt = single_file.with_suffix(".ckpt")
    torch.save({"state_dict": load_file(single_file), "global_step": 1}, ckpt)
    # A pickle has no metadata to carry the tiny model's configs in.
    changed = laid_over(config, {"model": {"base_model": str(ckpt)}})
    report = check(changed)
    assert not report.errors
    with pytest.raises(DarkroomError, match=r"model\.ckpt"):
        load_family(changed.model, changed.part)


def test_the_wrong_family_is_named(config: Config, any_model: Path) -> None:
    wrong = "sdxl" if family_of(any_model) == "sd" else "sd"
    changed = laid_over(config, {"model": {"family": wrong}})
    (error,) = check(changed).errors
    assert error.path == "model.base_model"
    assert error.advice.startswith("Set the model family to Stable Diffusion")
    with pytest.raises(DarkroomError, match="is not Stable Diffusion"):
        load_family(changed.model, changed.part)


@pytest.mark.parametrize("content", [b"<!DOCTYPE html><html>", b"", b"version https://git-lfs.github.com/spec/v1\noid"])
def test_a_file_that_is_not_a_model_is_reported(config: Config, single_file: Path, content: bytes) -> None:
    single_file.write_bytes(content)
    (error,) = check(config).errors
    assert error.path == "model.base_model"
    with pytest.raises(DarkroomError, match="is not a whole model"):
        load_family(config.model, config.part)


@pytest.mark.daily(1)
def test_a_lora_is_not_a_base_model(config: Config, tmp_path: Path) -> None:
    result = run(config).finished.model_path
    changed = laid_over(config, {"model": {"base_model": result}})
    assert any("LoRA" in error.message for error in check(changed).errors)


def test_another_vae_replaces_the_models_own(config: Config, single_file: Path, tmp_path: Path) -> None:
    prefix = "first_stage_model."
    vae = {k.removeprefix(prefix): v + 0.5 for k, v in load_file(single_file).items() if k.startswith(prefix)}
    save_file(vae, tmp_path / "other.vae.safetensors")
    changed = laid_over(config, {"parts": {"vae": {"file": str(tmp_path / "other.vae.safetensors")}}})
    assert not check(changed).errors
    own, other = (load_family(c.model, c.part).parts["vae"].module.state_dict() for c in (config, changed))
    for name, tensor in own.items():
        torch.testing.assert_close(other[name], tensor + 0.5)


def test_the_vae_of_a_diffusers_folder_replaces_the_models_own(config: Config, tiny_sd: Path) -> None:
    for folder in (tiny_sd, tiny_sd / "vae"):
        changed = laid_over(config, {"parts": {"vae": {"file": str(folder)}}})
        assert not check(changed).errors
        module = load_family(changed.model, changed.part).parts["vae"].module
        stored = load_file(tiny_sd / "vae" / "diffusion_pytorch_model.safetensors")
        assert all(torch.equal(module.state_dict()[name].float(), tensor.float()) for name, tensor in stored.items())


def test_a_file_without_a_vae_is_named(config: Config, tmp_path: Path) -> None:
    save_file({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    errors = check(laid_over(config, {"parts": {"vae": {"file": str(tmp_path / "x.safetensors")}}})).errors
    assert [e.path for e in errors] == ["parts.vae.file"]


@pytest.mark.full
@pytest.mark.parametrize("form", ["kohya", "diffusers"])
def test_a_lora_on_all_its_layers_samples_the_trainers_image_in_diffusers(
    config: Config, any_model: Path, tmp_path: Path, form: str
) -> None:
    """Convolutions and all text encoders included, from one file to a LoRA file to stock diffusers."""
    prompt = SamplePrompt(prompt="a disc", width_px=64, height_px=64, steps=3, guidance=2.0)
    ran = run(
        laid_over(
            config,
            {
                "training": {"epochs": 2, "learning_rate": 0.02},
                "adapter": {"layers": "all", "rank": 4, "alpha": 2.0},
                "sampling": {"at_end": True, "prompts": [prompt.model_dump()]},
                "output": {"format": form, "dtype": "float32"},
            },
        )
    )
    file = Path(ran.finished.model_path)
    layers = {k.rsplit(".lora_", 1)[0] for k in load_file(file) if ".lora_" in k}
    assert any("conv" in layer for layer in layers)
    pipe = stock_pipeline(any_model)
    plain = sample_in_diffusers(pipe, prompt)
    pipe.load_lora_weights(file.parent, weight_name=file.name)
    with Image.open(ran.of(SampleReady)[-1].path) as image:
        ours = np.asarray(image.convert("RGB")).astype(int)
    sampled = sample_in_diffusers(pipe, prompt)
    assert np.abs(ours - sampled).max() <= 1
    assert np.abs(ours - plain).max() > 5
    # The file identifies its model: it can be inspected and converted into the other form and back.
    assert "diffusers" in ran.of(ModelSaved)[-1].loaded_by
    other, back = tmp_path / "other.safetensors", tmp_path / "back.safetensors"
    convert(open_source(file), other, "peft" if form == "kohya" else "kohya", dtype=None, created=NOW)
    convert(open_source(other), back, "kohya" if form == "kohya" else "peft", dtype=None, created=NOW)
    # Conversion to PEFT multiplies alpha into the up matrix; the kohya form then has alpha = rank.
    assert load_file(back).keys() == load_file(file).keys()
