"""FLUX.1 alone: guidance, schnell, Fill, both text encoders; what all flow families share is in tests/training/flow."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from modules.config.codec import decode
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.diffusion.flow_convention import ConstantShift, TokenShift
from modules.families.flux.model import Flux
from modules.families.flux.spec import FLUX
from modules.families.kinds.identify import identify, who_loads_file
from modules.formats.safetensors_io import read_safetensors
from modules.sampling.denoising_loop import initial_noise, run_denoising_loop, scheduler_for
from modules.sampling.prediction import guided_prediction, read_inpainting_images, with_guidance
from modules.system.devices import CPU
from tests.builders.configs import config_fixture, laid_over, small_config
from tests.builders.flux import flux_pipeline, write_flux_folder
from tests.builders.pipelines import family_fixture, load_tiny
from tests.builders.runs import assert_equal_tensors, errors_of, losses, run
from tests.unit.test_migrations import flux_tree
from trainer.events import BackupSaved, SampleReady
from trainer.preflight import check
from trainer.preflight.captions import tokens_read
from ui.forms.records import groups_of, inline_records

NOISE: dict[str, Any] = {"distribution": "logit_normal", "dynamic_shift": True}
BASE: dict[str, Any] = {
    "data": {"latent_cache": True, "text_cache": True},
    "model": {"family": {"text_tokens": 16}},
    "training": {"epochs": 1, "batch_size": 2, "learning_rate": 0.01, "noise": NOISE},
    "output": {"dtype": "float32"},
}
FROZEN_TEXT = {name: {"train": False} for name in FLUX.names_of("text_encoder")}
SIZE = Size(64, 64)


config = config_fixture("tiny_flux", BASE)
family = family_fixture("tiny_flux", FLUX.name, text_tokens=16)


@pytest.fixture(scope="module")
def schnell(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return write_flux_folder(tmp_path_factory.mktemp("models") / "tiny-schnell", guidance_embeds=False)


def noise(*, batch: int = 1, seed: int = 5) -> torch.Tensor:
    return torch.randn(batch, 16, 8, 8, generator=torch.Generator().manual_seed(seed))


# -- guidance and schnell


@torch.no_grad()
def test_training_reads_the_guidance_of_the_settings_and_samples_their_own(tiny_flux: Path, family: Flux) -> None:
    text, timesteps = family.encode_prompts(["a disc"]), torch.tensor([500.0])
    trained = family.predict(noise(), timesteps, text)
    assert torch.equal(trained, family.predict(noise(), timesteps, with_guidance(family, text, 1.0)))
    assert not torch.allclose(trained, family.predict(noise(), timesteps, with_guidance(family, text, 3.5)))
    other: Flux = load_tiny(tiny_flux, FLUX.name, text_tokens=16, guidance=3.5)
    expected = family.predict(noise(), timesteps, with_guidance(family, text, 3.5))
    assert torch.equal(other.predict(noise(), timesteps, text), expected)


@torch.no_grad()
def test_schnell_reads_256_tokens_and_no_guidance_and_its_shift_is_the_same_for_all_sizes(schnell: Path) -> None:
    family: Flux = load_tiny(schnell, FLUX.name)
    pipe, prompt = flux_pipeline(schnell, family), "a disc"
    text = family.encode_prompts([prompt])
    states, *_ = pipe.encode_prompt([prompt], device="cpu", max_sequence_length=256)
    torch.testing.assert_close(text.rows["states"], states, rtol=1e-5, atol=1e-5)
    assert (family.process.convention.shift, family.lora_naming.model) == (ConstantShift(1.0), "flux_schnell")
    start, generator = initial_noise((1, 16, 8, 8), seed=3, device=CPU)
    options = {"num_inference_steps": 2, "guidance_scale": 5.0, "height": 64, "width": 64, "max_sequence_length": 256}
    packed = pipe._pack_latents(start, 1, 16, 8, 8)
    theirs = pipe([prompt], latents=packed, output_type="latent", **options).images
    predict = guided_prediction(family, text, None, size=SIZE, guidance=2.0)
    scheduler = scheduler_for(family, "euler", SIZE)
    latents = run_denoising_loop(predict, scheduler, start, num_steps=2, generator=generator, on_step=lambda: None)
    torch.testing.assert_close(latents, pipe._unpack_latents(theirs, 64, 64, 8), rtol=1e-5, atol=1e-5)


def test_captions_are_counted_by_the_tokens_that_the_model_reads(config: Config, schnell: Path) -> None:
    def read(**model: Any) -> int:
        return tokens_read(laid_over(config, {"model": model}))

    assert read() == 15
    assert read(family={"text_tokens": None}) == 511
    assert read(family={"text_tokens": None}, base_model=str(schnell)) == 255
    assert read(family={"text_tokens": None}, base_model="black-forest-labs/FLUX.1-schnell") == 255


def test_the_shift_is_that_of_the_checkpoint(family: Flux) -> None:
    assert family.process.convention.shift == TokenShift(4, 64)
    assert FLUX.process.flow is not None
    assert FLUX.process.flow.shift_at(1024, 1024) == pytest.approx(3.158, abs=1e-3)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("someone/FLUX.1-dev", ""),
        ("black-forest-labs/FLUX.1-schnell", "its name"),
        ("someone/flux-schnell-dedistilled", ""),
        ("schnell", "guidance_embeds in its config"),
    ],
)
def test_schnell_is_distilled(config: Config, schnell: Path, tmp_path: Path, name: str, evidence: str) -> None:
    if name == "schnell":
        name = str(shutil.copytree(schnell, tmp_path / "model"))
    problems = check(laid_over(config, {"model": {"base_model": name}})).problems
    found = [p.message for p in problems if "seems to be a distilled model" in p.message]
    assert [m.endswith(f"by {evidence}.") for m in found] == ([True] if evidence else [])


def test_a_model_without_modulations_is_not_one(tmp_path: Path) -> None:
    """Models made from FLUX.1 have most of its names."""
    names = ("double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight", "distilled_guidance_layer.x")
    save_file({name: torch.zeros(2, 2) for name in names}, tmp_path / "other.safetensors")
    assert identify(tmp_path / "other.safetensors").family != FLUX.name


# -- Fill


@pytest.fixture
def fill(tiny_flux_fill: Path, images: Path, tmp_path: Path) -> Config:
    sections = {**BASE, "model": {"variant": "inpainting", **BASE["model"]}, "parts": FROZEN_TEXT}
    return laid_over(small_config(tmp_path, model=tiny_flux_fill, images=images), sections)


@pytest.fixture
def inpainted_files(tmp_path: Path) -> tuple[Path, Path]:
    base, mask = Image.effect_noise((64, 64), 90).convert("RGB"), Image.new("L", (64, 64))
    mask.paste(255, (13, 16, 48, 45))  # not on the borders of latents
    base.save(tmp_path / "base.png")
    mask.save(tmp_path / "mask.png")
    return tmp_path / "base.png", tmp_path / "mask.png"


@torch.no_grad()
def test_a_sample_of_fill_is_that_of_diffusers_pipeline(
    tiny_flux_fill: Path, inpainted_files: tuple[Path, Path]
) -> None:
    family: Flux = load_tiny(tiny_flux_fill, FLUX.name)
    images = read_inpainting_images(*inpainted_files, SIZE)
    masked = family.encode_images(images.image_13PP, torch.Generator().manual_seed(0))
    inputs = {"masked_image": masked, "mask_pixels": images.mask_by_latents(8)}
    pipe, prompt = flux_pipeline(tiny_flux_fill, family), "a disc"
    start, generator = initial_noise((1, 16, 8, 8), seed=3, device=CPU)
    with Image.open(inpainted_files[0]) as image, Image.open(inpainted_files[1]) as mask:
        theirs = pipe(
            [prompt],
            image=image,
            mask_image=mask,
            latents=pipe._pack_latents(start, 1, 16, 8, 8),
            generator=torch.Generator().manual_seed(0),
            num_inference_steps=3,
            guidance_scale=3.0,
            height=64,
            width=64,
            output_type="latent",
        ).images
    text = with_guidance(family, family.encode_prompts([prompt]), 3.0)
    latents = run_denoising_loop(
        lambda noisy, timestep: family.predict(noisy, timestep.expand(1), text, inputs),
        scheduler_for(family, "euler", SIZE),
        start,
        num_steps=3,
        generator=generator,
        on_step=lambda: None,
    )
    # The pipeline rounds the masked image's latents in another way, by 4e-6, which the steps multiply.
    torch.testing.assert_close(latents, pipe._unpack_latents(theirs, 64, 64, 8), rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_fill_trains_with_masks_and_prior_preservation(
    fill: Config, images: Path, inpainted_files: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    for file in sorted(folder.glob("*.png"))[:3]:  # the others get random masks
        mask = Image.new("L", Image.open(file).size)
        mask.paste(255, (5, 5, 32, 32))
        mask.save(folder / f"{file.stem}-masklabel.png")
    base, mask_file = (str(p) for p in inpainted_files)
    prompt = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2, "guidance": 3.0}
    inpainted = {**prompt, "inpainting": True, "base_image": base, "mask_image": mask_file}
    sections: dict[str, Any] = {
        "masks": {"enabled": True, "prior_preservation_weight": 0.5, "unmasked_probability": 0.3},
        "concepts": [{"path": str(folder)}, {"path": str(images), "kind": "prior_prediction"}],
        "sampling": {"at_end": True, "prompts": [prompt, inpainted]},
        "backup": {"every": {"n": 2, "unit": "step"}, "keep": 0},
    }
    config = laid_over(fill, sections)
    assert not check(config).errors
    ran = run(config)
    assert len(ran.of(SampleReady)) == 2
    resumed = run(config, resume_from=Path(ran.of(BackupSaved)[0].path))
    assert_equal_tensors(resumed.weights, ran.weights)
    fresh = run(laid_over(config, {"data": {"latent_cache": False}, "sampling": {"at_end": False}}))
    assert losses(fresh) == losses(ran)


def test_the_wrong_variant_is_named(fill: Config, config: Config) -> None:
    message = errors_of(fill, model={"variant": "text_to_image"})["model.variant"]
    assert "FLUX.1 dev inpainting" in message
    assert "model.variant" in errors_of(config, model={"variant": "inpainting"})


# -- text encoders and embeddings


def test_a_lora_of_both_text_encoders(config: Config, tiny_flux: Path) -> None:
    ran = run(laid_over(config, {"output": {"format": "kohya"}}))
    lora = Path(ran.finished.model_path)
    names = read_safetensors(lora)[0]
    layers = {name.partition(".")[0] for name in names}
    assert {
        "lora_te1_text_model_encoder_layers_1_mlp_fc1",
        "lora_te3_encoder_block_2_layer_1_DenseReluDense_wo",
        "lora_unet_double_blocks_1_img_attn_qkv",
        "lora_unet_single_blocks_1_linear1",
    } <= layers
    answers = {x.program: (x.loads, x.note) for x in who_loads_file(lora)[1]}
    loaded, note = answers["diffusers"]
    assert loaded == "none"
    assert "T5" in note
    pipe = flux_pipeline(tiny_flux, load_tiny(tiny_flux, FLUX.name))
    with pytest.raises((KeyError, ValueError, AssertionError)):
        pipe.load_lora_weights(lora)
    further = {
        "adapter": {"start_from": str(lora)},
        "output": {"destination": str(lora.with_name("further.safetensors"))},
    }
    without_text = laid_over(config, {**further, "parts": FROZEN_TEXT})
    assert not check(without_text).errors
    assert run(without_text).finished.outcome == "finished"


def test_a_lora_of_clip_is_loaded_by_diffusers(config: Config, tiny_flux: Path) -> None:
    parts = {"transformer": {"train": False}, "text_encoder_2": {"train": False}}
    lora = Path(run(laid_over(config, {"output": {"format": "diffusers"}, "parts": parts})).finished.model_path)
    family: Flux = load_tiny(tiny_flux, FLUX.name, text_tokens=16)
    pipe = flux_pipeline(tiny_flux, family)
    with torch.no_grad():
        before = family.encode_prompts(["a disc"]).rows["pooled"]
        pipe.load_lora_weights(lora)
        after = pipe._get_clip_prompt_embeds(["a disc"], device="cpu")
    assert (after - before).abs().max() > 1e-3


@pytest.mark.daily(1)
@pytest.mark.parametrize("is_output", [False, True])
def test_embeddings_of_both_encoders(config: Config, tmp_path: Path, is_output: bool) -> None:
    word = {"placeholder": "<zog>", "initial_text": "a disc", "is_output": is_output}
    clip = {"text_encoder": {"train_embedding": not is_output}}  # of CLIP only the state of the whole prompt is read
    changes: dict[str, Any] = {
        "training": {"trains": "embedding"},
        "embeddings": {"words": [word]},
        "parts": clip,
        "concepts": [{"path": config.concepts[0].path, "text": {"prefix": "<zog>"}}],
        "output": {"destination": str(tmp_path / "zog.safetensors")},
    }
    trained = laid_over(config, changes)
    assert not check(trained).errors
    ran = run(trained)
    file = tmp_path / "zog.safetensors"
    tensors = read_safetensors(file)[0]
    assert {"clip_l", "t5xxl"} <= tensors.keys()
    assert identify(file).family == FLUX.name
    again = laid_over(trained, {"embeddings": {"words": [{**word, "file": str(file)}]}})
    assert losses(run(again))[0] != losses(ran)[0]


# -- OneTrainer's files


@pytest.mark.parametrize("model_type", ["FLUX_DEV_1", "FLUX_FILL_DEV_1"])
def test_onetrainers_presets_train(
    request: pytest.FixtureRequest, images: Path, tmp_path: Path, model_type: str
) -> None:
    """Its preset for 512 pixels, on a tiny model."""
    loaded = decode(flux_tree(model_type=model_type))
    assert not [p for p in loaded.problems if p.severity != "info"]
    model = request.getfixturevalue("tiny_flux" if model_type == "FLUX_DEV_1" else "tiny_flux_fill")
    small = small_config(tmp_path, model=model, images=images)
    config = laid_over(
        loaded.config,
        {
            "general": small.general.model_dump(),
            "model": {"base_model": str(model)},
            "data": {"resolution_px": [64], "bucket_step_px": 16, "loader_threads": 1},
            "concepts": [{"path": str(images)}],
            "training": {"epochs": 1, "batch_size": 2, "schedule": {"warmup_steps": 0}},
            "output": {"destination": str(tmp_path / "out.safetensors")},
        },
    )
    assert not check(config).errors
    ran = run(config)
    assert ran.finished.outcome == "finished"
    names = read_safetensors(Path(ran.finished.model_path))[0]
    assert any(name.startswith("lora_unet_double_blocks_0_img_attn_qkv.") for name in names)


def test_the_forms_show_its_settings(config: Config) -> None:
    [choice] = groups_of(config, ("model.family",))[0].records
    assert [r.path for r in inline_records(config, choice)] == ["model.family.guidance", "model.family.text_tokens"]
