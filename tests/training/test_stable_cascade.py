"""Stable Cascade alone: its image encoder, decoder, noise levels and files; the rest is in tests/training/flow."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DDPMWuerstchenScheduler
from diffusers.models.unets.unet_stable_cascade import StableCascadeUNet
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import EfficientNetConfig
from transformers.models.efficientnet.modeling_efficientnet import EfficientNetBlock

from modules.config.codec import decode, encode
from modules.config.rules import problems_of
from modules.data.buckets import Size
from modules.diffusion.weightings import min_snr_weights
from modules.families.kinds.identify import identify
from modules.families.parts.efficient_net import STAGES, WIDTH, Block, EffNetEncoder, efficient_net, stages_of
from modules.families.parts.effnet_files import EFFNET_FILE
from modules.families.protocol import ModelFamily
from modules.sampling.denoising_loop import make_scheduler, scheduler_for
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over, small_config
from tests.builders.pipelines import load_tiny, noise_of
from trainer.preflight.model import problems_of_model

# -- the image encoder


@pytest.fixture
def family(tiny_stable_cascade: Path) -> ModelFamily:
    family: ModelFamily = load_tiny(tiny_stable_cascade)
    return family


def test_the_published_encoder_has_the_weights_of_efficientnet_v2_s() -> None:
    """torchvision's model has 21,458,488 weights, 1,281,000 of them in its classifier for 1,000 classes."""
    with torch.device("meta"):
        network, encoder = efficient_net(), EffNetEncoder(STAGES, WIDTH, 16)
        features = network(torch.empty(1, 3, 768, 1024))
    assert features.shape == (1, 1280, 24, 32)
    assert sum(p.numel() for p in network.parameters()) == 21_458_488 - 1_281_000
    shapes = {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
    known: dict[str, tuple[int, ...]] = {
        "backbone.0.0.weight": (24, 3, 3, 3),
        "backbone.1.0.block.0.1.num_batches_tracked": (),
        "backbone.2.0.block.1.0.weight": (48, 96, 1, 1),
        "backbone.4.0.block.2.fc1.weight": (16, 256, 1, 1),
        "backbone.6.14.block.1.0.weight": (1536, 1, 3, 3),
        "backbone.7.0.weight": (1280, 256, 1, 1),
        "mapper.0.weight": (16, 1280, 1, 1),
        "mapper.1.running_mean": (16,),
    }
    assert known.items() <= shapes.items()
    assert "mapper.1.weight" not in shapes  # the norm of the latents has no weights
    assert stages_of(shapes) == STAGES


@torch.no_grad()
def test_a_block_is_that_of_transformers_efficientnet() -> None:
    """Its MBConv with a stride of 1, where the older network pads as this one."""
    config = EfficientNetConfig(hidden_act="swish", squeeze_expansion_ratio=0.25, batch_norm_eps=1e-3)
    theirs = EfficientNetBlock(
        config, in_dim=8, out_dim=8, stride=1, expand_ratio=4, kernel_size=3, drop_rate=0.0, id_skip=False,
        adjust_padding=True,
    ).eval()  # fmt: skip
    ours = Block(8, 8, expansion=4, stride=1).eval()
    pairs = {
        "expansion.expand_conv": "block.0.0", "expansion.expand_bn": "block.0.1",
        "depthwise_conv.depthwise_conv": "block.1.0", "depthwise_conv.depthwise_norm": "block.1.1",
        "squeeze_excite.reduce": "block.2.fc1", "squeeze_excite.expand": "block.2.fc2",
        "projection.project_conv": "block.3.0", "projection.project_bn": "block.3.1",
    }  # fmt: skip
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
    for their_name, our_name in pairs.items():
        ours.get_submodule(our_name).load_state_dict(theirs.get_submodule(their_name).state_dict())
    images = torch.randn(2, 8, 6, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_an_image_is_encoded_at_three_quarters_of_its_size(family: ModelFamily) -> None:
    image = torch.rand(1, 3, 128, 256, generator=torch.Generator().manual_seed(0)) * 2 - 1
    latents = family.encode_images(image)
    assert latents.shape == (1, *family.spec.latents.shape(256, 128)) == (1, 16, 3, 6)
    assert [family.spec.latents.px(side) for side in latents.shape[-2:]] == [128, 256]
    encoder: Any = family.parts["vae"].module.effnet
    small = nn.functional.interpolate(image, size=(96, 192), mode="bilinear", antialias=True)
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    torch.testing.assert_close(latents, encoder((small / 2 + 0.5 - mean) / deviation), rtol=1e-4, atol=1e-5)


# -- the noise levels


def test_noise_levels_are_those_of_the_published_scheduler(family: ModelFamily) -> None:
    process, scheduler = family.process, DDPMWuerstchenScheduler()
    timesteps = torch.tensor([0, 9, 499, 949, 999])
    abar = scheduler._alpha_cumprod((timesteps + 1) / 1000, torch.device("cpu"))
    snr = abar / (1 - abar)
    torch.testing.assert_close(process.snr(timesteps), snr, rtol=1e-3, atol=1e-6)
    weights = min_snr_weights(process.snr(timesteps), gamma=5.0, prediction_type=process.prediction_type)
    torch.testing.assert_close(weights, snr.clamp(max=5.0) / snr, rtol=1e-3, atol=1e-6)
    clean, noise = noise_of(family, batch=5, seed=1), noise_of(family, batch=5, seed=2)
    theirs = scheduler.add_noise(clean, noise, (timesteps + 1) / 1000)
    torch.testing.assert_close(process.add_noise(clean, noise, timesteps), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sampler", ["ddim", "euler", "euler_a", "dpmpp", "unipc"])
def test_samplers_have_the_same_noise_levels(family: ModelFamily, sampler: str) -> None:
    scheduler = scheduler_for(family, sampler, Size(128, 128))
    scheduler.set_timesteps(20)
    assert float(scheduler.timesteps[0]) == 999  # the time 1 of the model
    abar = family.process.snr(torch.arange(1000))
    torch.testing.assert_close(scheduler.alphas_cumprod / (1 - scheduler.alphas_cumprod), abar, rtol=5e-3, atol=1e-6)
    assert make_scheduler("ddim", {"beta_schedule": "linear"}).config.trained_betas is None


@torch.no_grad()
def test_the_time_is_exact_in_bfloat16(family: ModelFamily) -> None:
    prior: Any = family.parts["prior"].module
    times = torch.tensor([0.001, 0.5, 0.951, 1.0])
    exact = StableCascadeUNet.get_timestep_ratio_embedding(prior, times)
    embedded = prior.to(torch.bfloat16).get_timestep_ratio_embedding(times)
    assert embedded.dtype == torch.bfloat16
    torch.testing.assert_close(embedded.float(), exact, rtol=0.0, atol=0.005)


# -- the places of its parts


@torch.no_grad()
def test_decoder_and_encoder_come_from_the_places_in_the_settings(tiny_stable_cascade: Path, tmp_path: Path) -> None:
    base, decoder, file = tmp_path / "base", tmp_path / "decoder", tmp_path / "other.safetensors"
    shutil.copytree(tiny_stable_cascade, base, ignore=shutil.ignore_patterns("decoder", "vqgan", EFFNET_FILE))
    shutil.copytree(tiny_stable_cascade, decoder, ignore=shutil.ignore_patterns("prior", "text_encoder"))
    whole: Any = load_tiny(tiny_stable_cascade)
    places = {"decoder": str(decoder), "effnet_encoder": "", "without_weights": ()}
    latents, image = noise_of(whole, batch=1, seed=3), torch.zeros(1, 3, 128, 128)
    apart = load_tiny(base, "stable_cascade", **places)
    assert torch.equal(apart.decode(latents), whole.decode(latents))
    assert torch.equal(apart.encode_images(image), whole.encode_images(image))
    tensors = load_file(decoder / EFFNET_FILE)
    save_file({name: tensor for name, tensor in tensors.items() if "mapper" not in name}, file)
    with pytest.raises(DarkroomError, match="does not have the weights of Stable Cascade's"):
        load_tiny(base, "stable_cascade", **{**places, "effnet_encoder": str(file)})
    (decoder / EFFNET_FILE).unlink()
    with pytest.raises(DarkroomError, match="Without it no image can be encoded"):
        load_tiny(base, "stable_cascade", **places)


def test_a_place_that_does_not_exist_is_found_before_the_run(tiny_stable_cascade: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, model=tiny_stable_cascade, images=tmp_path)
    places = {"decoder": str(tmp_path / "no decoder"), "effnet_encoder": "none.safetensors"}
    problems = list(problems_of_model(laid_over(config, {"model": {"family": places}}), None))
    assert {p.path for p in problems} == {f"model.family.{name}" for name in places}
    assert not list(problems_of_model(config, None))
    trained = laid_over(config, {"training": {"trains": "vae"}})
    assert "cannot be trained" in next(p.message for p in problems_of(trained) if p.path == "training.trains")


@torch.no_grad()
def test_an_image_is_decoded_alike_in_any_batch(family: ModelFamily) -> None:
    latents, text = noise_of(family, batch=2, seed=3), family.encode_prompts(["a disc", "a wall"])
    both = family.decode(latents, prompts=text)
    alone = [family.decode(latents[i : i + 1], prompts=text.select([i])) for i in (0, 1)]
    torch.testing.assert_close(both, torch.cat(alone), rtol=1e-4, atol=1e-5)
    guided = family.join([family.encode_prompts([""]), text.select([0])], text)
    assert torch.equal(family.decode(latents[:1], prompts=guided), alone[0])  # the negative prompt comes first


def test_a_file_of_the_prior_alone_is_recognized(tiny_stable_cascade: Path, tmp_path: Path) -> None:
    from_diffusers = tiny_stable_cascade / "prior" / "diffusion_pytorch_model.safetensors"
    kind = identify(from_diffusers)
    assert (kind.family, kind.is_denoiser) == ("stable_cascade", True)
    decoder = identify(tiny_stable_cascade / "decoder" / "diffusion_pytorch_model.safetensors")
    assert not decoder.is_denoiser
    assert decoder.family == ""


def test_an_embedding_of_bigg_alone_is_for_it(tmp_path: Path) -> None:
    """SDXL's have vectors of both encoders."""
    save_file({"clip_g": torch.zeros(2, 1280)}, tmp_path / "word.safetensors")
    assert identify(tmp_path / "word.safetensors").family == "stable_cascade"


# -- OneTrainer's configs


def test_flat_configs_of_onetrainer_keep_the_places_of_the_parts() -> None:
    tree = {
        "__version": 1,
        "model_type": "STABLE_CASCADE_1",
        "prior_model_name": "D:/stage_c.safetensors",
        "prior_weight_dtype": "BFLOAT_16",
        "decoder_model_name": "D:/cascade",
        "decoder_weight_dtype": "BFLOAT_16",
        "effnet_encoder_model_name": "D:/effnet.safetensors",
        "train_prior": True,
        "min_snr_gamma": 5.0,
    }
    loaded = decode(tree)
    assert not [p for p in loaded.problems if p.severity != "info"]
    model, parts = (encode(loaded.config)[name] for name in ("model", "parts"))
    assert model["family"] == {
        "name": "stable_cascade", "decoder": "D:/cascade", "effnet_encoder": "D:/effnet.safetensors"
    }  # fmt: skip
    assert (parts["prior"]["file"], parts["prior"]["dtype"]) == ("D:/stage_c.safetensors", "bfloat16")
    assert (parts["vae"]["file"], parts["vae"]["dtype"]) == ("", "bfloat16")
    assert encode(loaded.config)["training"]["loss"]["weighting"] == "min_snr"
