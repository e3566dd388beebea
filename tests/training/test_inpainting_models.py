"""Training inpainting models: what is trained, what it becomes, and what a run refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from modules.config.codec import encode
from modules.config.codec import load_file as load_config
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.data.buckets import Size
from modules.data.conditioning import Conditioning, SizeConditioning
from modules.estimate.architecture import architecture_of
from modules.estimate.passes import PartPlan
from modules.families.kinds.identify import identify
from modules.families.protocol import ModelFamily
from modules.families.registry import FAMILIES
from modules.settings.shared_types import CheckpointMode
from tests.builders.configs import laid_over, small_config
from tests.builders.models import write_inpainting_folder
from tests.builders.pipelines import load_tiny, sample_in_diffusers, stock_pipeline
from tests.builders.runs import run
from tests.builders.single_files import write_tiny
from trainer.__main__ import main
from trainer.commands import Command
from trainer.events import Event, ModelSaved, SampleReady, StepFinished, ValidationFinished, WarningRaised
from trainer.preflight import check
from trainer.preflight.passes import passes_of

ONETRAINER_PRESET: dict[str, Any] = {
    "training_method": "FINE_TUNE",
    "model_type": "STABLE_DIFFUSION_20_INPAINTING",
    "base_model_name": "stabilityai/stable-diffusion-2-inpainting",
    "output_dtype": "FLOAT_32",
    "output_model_format": "CKPT",
    "output_model_destination": "models/model.ckpt",
    "aspect_ratio_bucketing": True,
    "latent_caching": True,
    "optimizer": "ADAMW",
    "learning_rate": 3e-06,
    "learning_rate_warmup_steps": 200,
    "epochs": 100,
    "batch_size": 4,
    "train_text_encoder": True,
    "text_encoder_learning_rate": 3e-06,
    "train_unet": True,
    "unet_learning_rate": 3e-06,
    "offset_noise_weight": 0.05,
    "train_dtype": "FLOAT_16",
    "resolution": 512,
    "masked_training": False,
    "unmasked_probability": 0.1,
    "unmasked_weight": 0.1,
}
INPAINTING: dict[str, Any] = {"model": {"variant": "inpainting"}}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_sd: Path, tiny_sdxl: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("inpainting")
    return {n: write_inpainting_folder(folder / n, base) for n, base in (("sd", tiny_sd), ("sdxl", tiny_sdxl))}


@pytest.fixture(params=["sd", "sdxl"])
def config(request: pytest.FixtureRequest, models: dict[str, Path], images: Path, tmp_path: Path) -> Config:
    return laid_over(small_config(tmp_path, model=models[request.param], images=images), INPAINTING)


@pytest.fixture
def sd_config(models: dict[str, Path], images: Path, tmp_path: Path) -> Config:
    return laid_over(small_config(tmp_path, model=models["sd"], images=images), INPAINTING)


@pytest.fixture
def prompt(tmp_path: Path) -> SamplePrompt:
    base, mask = Image.effect_noise((64, 64), 90).convert("RGB"), Image.new("L", (64, 64))
    mask.paste(255, (16, 16, 48, 48))
    base.save(tmp_path / "base.png")
    mask.save(tmp_path / "mask.png")
    return SamplePrompt(
        prompt="a disc",
        width_px=64,
        height_px=64,
        steps=3,
        guidance=2.0,
        inpainting=True,
        base_image=str(tmp_path / "base.png"),
        mask_image=str(tmp_path / "mask.png"),
    )


def conditioning_of(family: ModelFamily, prompts: list[str]) -> Conditioning:
    sizes = [SizeConditioning.whole(Size(64, 64))] * len(prompts)
    return family.with_size_conditioning(family.encode_prompts(prompts), sizes)


def sampled_by_diffusers(pipe: Any, prompt: SamplePrompt) -> np.ndarray:
    with Image.open(prompt.base_image) as image, Image.open(prompt.mask_image) as mask:
        return sample_in_diffusers(pipe, prompt, image=image, mask_image=mask, strength=1.0)


# -- training


@pytest.mark.full
def test_a_lora_learns_and_has_the_usual_keys(config: Config, images: Path, prompt: SamplePrompt) -> None:
    """Beside validation, prior prediction and samples, which all give the model what it inpaints."""
    concepts = [{"path": str(images), "kind": kind} for kind in ("training", "validation", "prior_prediction")]
    changed = laid_over(
        config,
        {
            "concepts": concepts,
            "validation": {"every": {"n": 1, "unit": "epoch"}, "num_timesteps": 1},
            "sampling": {"at_end": True, "prompts": [prompt.model_dump()]},
            "parts": {"unet": {"checkpointing": "block"}},
        },
    )
    assert check(changed).errors == []
    ran = run(changed)
    assert ran.finished.outcome == "finished"
    assert not any("could not be generated" in w.message for w in ran.of(WarningRaised))
    assert len({v.loss for v in ran.of(ValidationFinished)}) > 1
    assert ran.of(SampleReady)
    file = Path(ran.of(ModelSaved)[-1].path)
    kind = identify(file)
    assert (kind.kind, kind.family) == ("lora", config.model.family.name)
    with safe_open(file, "pt") as opened:
        expected = {"sd": "stable-diffusion-v1-inpainting", "sdxl": "stable-diffusion-xl-v1-base"}
        assert opened.metadata()["modelspec.architecture"] == f"{expected[config.model.family.name]}/lora"
        assert all(key.startswith("lora_") for key in opened.keys())  # noqa: SIM118 - it has no other iterator


@pytest.mark.daily(1)
def test_a_fine_tune_becomes_what_diffusers_samples(config: Config, tmp_path: Path, prompt: SamplePrompt) -> None:
    destination = tmp_path / "tuned"
    changed = laid_over(
        config,
        {
            "training": {"trains": "full", "learning_rate": 1e-3},
            "parts": {"text_encoder": {"train": False}},
            "output": {"dtype": "float32", "model_format": "diffusers", "destination": str(destination)},
            "sampling": {"at_end": True, "prompts": [prompt.model_dump()]},
        },
    )
    ran = run(changed)
    assert ran.finished.outcome == "finished"
    name = "conv_in.weight"
    weights = "unet/diffusion_pytorch_model.safetensors"
    before, after = (load_file(f / weights)[name] for f in (Path(config.model.base_model), destination))
    moved = (before != after).any(dim=0).flatten(1).any(dim=1)
    assert moved.tolist() == [True] * 9, "every input channel learns"
    assert identify(destination).variant == "inpainting"
    with Image.open(ran.of(SampleReady)[-1].path) as image:
        ours = np.asarray(image.convert("RGB")).astype(int)
    assert np.abs(ours - sampled_by_diffusers(stock_pipeline(destination), prompt)).max() <= 1


@pytest.mark.full
def test_the_inputs_matter_to_the_loss(sd_config: Config, images: Path, tmp_path: Path) -> None:
    """The same run with other masks has other losses."""

    def losses(probability: float) -> list[float]:
        return [
            s.loss for s in run(laid_over(sd_config, {"masks": {"unmasked_probability": probability}})).of(StepFinished)
        ]

    assert losses(0.0) != losses(1.0)


@pytest.mark.daily(1)
@pytest.mark.parametrize("mode", ["block", "whole"])
def test_checkpointing_changes_nothing(sd_config: Config, mode: CheckpointMode) -> None:
    plain = run(sd_config).weights
    checkpointed = run(laid_over(sd_config, {"parts": {"unet": {"checkpointing": mode}}})).weights
    assert all(torch.equal(plain[name], checkpointed[name]) for name in plain)


# -- what a run refuses


def test_a_model_of_another_variant_is_named_before_the_run(sd_config: Config, tiny_sd: Path) -> None:
    def said(model: dict[str, Any]) -> list[str]:
        return [p.message for p in check(laid_over(sd_config, {"model": model})).errors if p.path == "model.variant"]

    assert said({}) == []
    [message] = said({"variant": "text_to_image"})
    assert "is set to Base" in message
    assert "inpainting" in message
    [message] = said({"base_model": str(tiny_sd)})
    assert "is set to Inpainting" in message


def test_methods_that_sample_are_refused(sd_config: Config) -> None:
    for method in ("alignprop", "ddpo", "dpo"):
        changed = laid_over(sd_config, {"training": {"method": {"name": method}}})
        assert any("cannot train inpainting models" in p.message for p in problems_of(changed)), method
    assert not any("cannot train" in p.message for p in problems_of(sd_config))


def test_samples_that_lack_their_images_are_named(sd_config: Config, prompt: SamplePrompt, tmp_path: Path) -> None:
    def said(model: dict[str, Any], **sample: Any) -> list[tuple[str, str]]:
        prompts = [prompt.model_copy(update=sample).model_dump()]
        changed = laid_over(sd_config, {"model": model, "sampling": {"at_end": True, "prompts": prompts}})
        return [
            (p.path.removeprefix("sampling.prompts.0."), p.severity)
            for p in check(changed).problems
            if "prompts" in p.path
        ]

    assert said({}) == []
    assert said({}, mask_image="") == [("mask_image", "error")]
    assert said({}, base_image=str(tmp_path / "none.png")) == [("base_image", "error")]
    (tmp_path / "text.png").write_text("text")
    assert said({}, mask_image=str(tmp_path / "text.png")) == [("mask_image", "error")]
    assert ("inpainting", "warning") in said({"variant": "text_to_image"})


def test_an_image_that_disappears_is_a_warning(sd_config: Config, prompt: SamplePrompt) -> None:
    def on_event(event: Event, send: Callable[[Command], None]) -> None:
        if isinstance(event, StepFinished):
            Path(prompt.base_image).unlink(missing_ok=True)

    changed = laid_over(sd_config, {"sampling": {"at_end": True, "prompts": [prompt.model_dump()]}})
    ran = run(changed, on_event=on_event)
    assert ran.finished.outcome == "finished"
    assert ["base.png" in w.message for w in ran.of(WarningRaised)] == [True]


# -- files


@pytest.mark.parametrize("name", ["tiny_sd", "tiny_sd2", "tiny_sdxl"])
def test_a_base_model_becomes_an_inpainting_model_that_predicts_the_same(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    base: Path = request.getfixturevalue(name)
    assert main(["convert", str(base), str(tmp_path / "folder"), "--to-inpainting"]) == 0
    assert main(["convert", str(base), str(tmp_path / "file.safetensors"), "--to-inpainting"]) == 0
    timesteps = torch.tensor([30, 700])
    noisy, mask, image = (torch.randn(2, n, 8, 8, generator=torch.Generator().manual_seed(n)) for n in (4, 1, 3))
    image = torch.cat([image, mask], dim=1)
    plain = load_tiny(base)
    expected = plain.predict(noisy, timesteps, conditioning_of(plain, ["a cat"] * 2))
    for path in (tmp_path / "folder", tmp_path / "file.safetensors"):
        assert identify(path).variant == "inpainting"
        family = load_tiny(path, plain.spec.name)
        conditioning = conditioning_of(family, ["a cat"] * 2)
        torch.testing.assert_close(
            family.predict(noisy, timesteps, conditioning, {"masked_image": image, "mask": mask}), expected
        )


def test_only_base_models_become_inpainting_models(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(models["sd"]), str(tmp_path / "again"), "--to-inpainting"]) == 2
    assert "not a base model" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


@pytest.mark.daily(1)
@pytest.mark.parametrize("model", ["sd1", "sd2", "sdxl"])
def test_there_and_back_is_the_same(model: str, tmp_path: Path) -> None:
    """A single file, as a folder that diffusers loads, and as a file again."""
    parts = write_tiny(tmp_path / "a.safetensors", model, variant="inpainting")
    assert main(["convert", str(tmp_path / "a.safetensors"), str(tmp_path / "folder")]) == 0
    assert main(["convert", str(tmp_path / "folder"), str(tmp_path / "b.safetensors")]) == 0
    first, last = (load_file(tmp_path / f"{n}.safetensors") for n in "ab")
    assert first.keys() == last.keys()
    assert all(torch.equal(first[name], last[name]) for name in first)
    assert identify(tmp_path / "b.safetensors").variant == "inpainting"
    pipe = stock_pipeline(tmp_path / "folder")
    assert "Inpaint" in type(pipe).__name__
    assert all(torch.equal(t, pipe.unet.state_dict()[n]) for n, t in parts["unet"].state_dict().items())


def test_the_sidecar_of_sd2_names_the_inpainting_class(tmp_path: Path) -> None:
    write_tiny(tmp_path / "a.safetensors", "sd2", variant="inpainting")
    text = (tmp_path / "a.yaml").read_text()
    assert "LatentInpaintDiffusion" in text
    assert 'conditioning_key: "hybrid"' in text
    write_tiny(tmp_path / "b.safetensors", "sd2")
    assert 'conditioning_key: "crossattn"' in (tmp_path / "b.yaml").read_text()


@pytest.mark.full
def test_a_lora_of_every_layer_is_recognised(sd_config: Config) -> None:
    """Its first layer has the nine input channels of the model."""
    file = Path(run(laid_over(sd_config, {"adapter": {"layers": "all"}})).of(ModelSaved)[-1].path)
    kind = identify(file)
    assert (kind.kind, kind.model) == ("lora", "sd1"), kind.sentence


def test_the_memory_estimate_counts_the_channels(models: dict[str, Path]) -> None:
    architecture = architecture_of(str(models["sd"]), "sd")
    assert architecture is not None
    found = passes_of(FAMILIES["sd"], architecture.configs).weights("unet", PartPlan()).shapes
    assert sorted(found.values()) == sorted(
        tuple(p.shape) for p in load_tiny(models["sd"]).parts["unet"].module.parameters()
    )


@pytest.mark.full
def test_an_inpainting_preset_of_onetrainer_trains(tiny_sd2: Path, images: Path, tmp_path: Path) -> None:
    """Its first preset for SD 2 inpainting, with a tiny model in place of the published one."""
    model = write_inpainting_folder(tmp_path / "model", tiny_sd2)
    file = tmp_path / "#sd 2.0 inpaint.json"
    file.write_text(json.dumps(ONETRAINER_PRESET))
    loaded = load_config(file)
    assert loaded.was_migrated
    assert (loaded.config.model.variant, loaded.config.masks.unmasked_probability) == ("inpainting", 0.1)
    small = encode(small_config(tmp_path, model=model, images=images))
    changed = laid_over(
        loaded.config,
        {
            **{name: small[name] for name in ("general", "concepts", "sampling", "backup", "output")},
            "model": {"base_model": str(model)},
            "data": {"resolution_px": [64], "bucket_step_px": 16},
            "training": {"epochs": 1, "precision": "float32", "schedule": {"name": "constant"}},
        },
    )
    assert [p.message for p in check(changed).errors] == []
    assert run(changed).finished.outcome == "finished"
