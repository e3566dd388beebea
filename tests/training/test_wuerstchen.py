"""Wuerstchen 2 alone: its latents, its decoder's text encoder, its files; the rest is in tests/training/flow.

The image encoder and the noise levels, which are Stable Cascade's, are in `test_stable_cascade.py`.
"""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import WuerstchenPriorPipeline
from diffusers.pipelines.deprecated.wuerstchen.modeling_wuerstchen_prior import WuerstchenPrior
from safetensors.torch import load_file, save_file
from torch import nn

from modules.config.codec import decode, encode
from modules.families.kinds.identify import identify
from modules.families.parts.effnet_files import EFFNET_FILE
from modules.families.parts.single_file.write import to_original
from modules.families.protocol import ModelFamily
from modules.families.wuerstchen.files import PRIOR_FILE
from modules.formats.lazy_tensors import lazy_state
from modules.system.devices import CPU
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.pipelines import load_tiny, noise_of
from tests.builders.runs import run

_STAGE_B = "model_v2_stage_b.pt"


@pytest.fixture
def family(tiny_wuerstchen: Path) -> ModelFamily:
    family: ModelFamily = load_tiny(tiny_wuerstchen)
    return family


# -- latents and time


@torch.no_grad()
def test_latents_are_the_scaled_output_of_the_encoder(family: ModelFamily) -> None:
    image = torch.rand(1, 3, 128, 256, generator=torch.Generator().manual_seed(0)) * 2 - 1
    latents = family.encode_images(image)
    assert latents.shape == (1, *family.spec.latents.shape(256, 128)) == (1, 16, 3, 6)
    encoder: Any = family.parts["vae"].module.effnet
    small = nn.functional.interpolate(image, size=(96, 192), mode="bilinear", antialias=True)
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    encoded = encoder((small / 2 + 0.5 - mean) / deviation)
    usual = {n: p.default for n, p in inspect.signature(WuerstchenPriorPipeline.__init__).parameters.items()}
    assert (usual["latent_mean"], usual["latent_std"]) == (42.0, 1.0)
    torch.testing.assert_close(latents * usual["latent_mean"] - usual["latent_std"], encoded, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_time_is_exact_in_bfloat16(family: ModelFamily) -> None:
    prior: Any = family.parts["prior"].module
    times = torch.tensor([0.001, 0.5, 0.951, 1.0])
    exact = WuerstchenPrior.gen_r_embedding(prior, times)
    embedded = prior.to(torch.bfloat16).gen_r_embedding(times)
    assert embedded.dtype == torch.bfloat16
    torch.testing.assert_close(embedded.float(), exact, rtol=0.0, atol=0.005)


# -- the decoder's own text encoder


@torch.no_grad()
def test_an_image_is_decoded_alike_in_any_batch(family: ModelFamily) -> None:
    latents, text = noise_of(family, batch=2, seed=3), family.encode_prompts(["a disc", "a wall"])
    both = family.decode(latents, prompts=text)
    alone = [family.decode(latents[i : i + 1], prompts=text.select([i])) for i in (0, 1)]
    torch.testing.assert_close(both, torch.cat(alone), rtol=1e-4, atol=1e-4)
    guided = family.join([family.encode_prompts([""]), text.select([0])], text)
    assert torch.equal(family.decode(latents[:1], prompts=guided), alone[0])  # the negative prompt comes first
    unknown, empty = (family.decode(latents[:1], prompts=p) for p in (None, family.encode_prompts([""])))
    assert torch.equal(unknown, empty)
    assert not torch.equal(unknown, alone[0])


@pytest.mark.parametrize("name", ["tiny_wuerstchen", "tiny_stable_cascade"])
@torch.no_grad()
def test_a_sample_of_any_size_is_decoded(name: str, request: pytest.FixtureRequest) -> None:
    """Sizes between the multiples of 128 px give patches that are cut: the image is a little larger than asked for."""
    family: Any = load_tiny(request.getfixturevalue(name))
    for width_px, height_px in ((64, 96), (216, 128)):
        shape = family.spec.latents.shape(width_px, height_px)
        image = family.decode(torch.zeros(1, *shape))
        assert image.isfinite().all()
        found_height, found_width = image.shape[-2:]
        assert 0 <= found_height - 32 / 3 * 4 * shape[1] + 4 <= 24
        assert 0 <= found_width - 32 / 3 * 4 * shape[2] + 4 <= 24


@torch.no_grad()
def test_the_decoder_reads_the_placeholder_of_an_embedding_as_it_is_written(tiny_wuerstchen: Path) -> None:
    family: Any = load_tiny(tiny_wuerstchen)
    before = family.encode_prompts(["a <word>"]).tensors()
    family.add_embeddings({"<word>": {"text_encoder": nn.Parameter(torch.randn(2, 24))}})
    after = family.encode_prompts(["a <word>"]).tensors()
    assert torch.equal(after["tokens"], before["tokens"])
    assert not torch.allclose(after["states"], before["states"])
    moved = family.encode_prompts(["a disc"]).to(CPU, torch.bfloat16).tensors()
    assert (moved["states"].dtype, moved["tokens"].dtype) == (torch.bfloat16, torch.int32)


# -- the places of its parts


@torch.no_grad()
def test_decoder_and_encoder_come_from_the_places_in_the_settings(tiny_wuerstchen: Path, tmp_path: Path) -> None:
    base, decoder, files = tmp_path / "base", tmp_path / "decoder", tmp_path / "files"
    of_decoder = ("decoder", "vqgan", "decoder_text_encoder", EFFNET_FILE)
    shutil.copytree(tiny_wuerstchen, base, ignore=shutil.ignore_patterns(*of_decoder))
    shutil.copytree(tiny_wuerstchen, decoder, ignore=shutil.ignore_patterns("prior", "text_encoder", EFFNET_FILE))
    (decoder / "decoder_text_encoder").rename(decoder / "text_encoder")  # as in the published repository
    files.mkdir()
    encoder = load_file(tiny_wuerstchen / EFFNET_FILE)
    torch.save({"state_dict": {"clip_mapper.bias": torch.zeros(2)}, "effnet_state_dict": encoder}, files / _STAGE_B)
    whole: Any = load_tiny(tiny_wuerstchen)
    latents, image = noise_of(whole, batch=1, seed=3), torch.zeros(1, 3, 128, 128)
    text = whole.encode_prompts(["a disc"])
    for place in (files, files / _STAGE_B):  # a folder or repository, and the file
        places = {"decoder": str(decoder), "effnet_encoder": str(place), "without_weights": ()}
        apart = load_tiny(base, "wuerstchen", **places)
        assert torch.equal(apart.decode(latents, prompts=text), whole.decode(latents, prompts=text))
        assert torch.equal(apart.encode_images(image), whole.encode_images(image))
    wrong = files / "wrong.safetensors"
    save_file({name: tensor for name, tensor in encoder.items() if "mapper.1" not in name}, wrong)
    with pytest.raises(DarkroomError, match="does not have the weights of Wuerstchen 2's"):
        load_tiny(base, "wuerstchen", **{**places, "effnet_encoder": str(wrong)})
    for missing, why in ((str(tmp_path), "does not exist"), ("owner/none", "is not on this machine")):
        with pytest.raises(DarkroomError, match=f"{why}.*Without it no image can be encoded"):
            load_tiny(base, "wuerstchen", **{**places, "effnet_encoder": missing, "offline": True})


# -- its files


def test_files_of_its_networks_are_recognized(tiny_wuerstchen: Path, tmp_path: Path) -> None:
    folder = tiny_wuerstchen / "prior" / "diffusion_pytorch_model.safetensors"
    config = WuerstchenPrior.load_config(tiny_wuerstchen / "prior")
    original = to_original(PRIOR_FILE.layout(config).slots, lazy_state(load_file(folder)))
    published = tmp_path / "model_v2_stage_c.pt"
    weights = {name: tensor.make() for name, tensor in original.items()}
    earlier = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    torch.save({"state_dict": earlier, "ema_state_dict": weights}, published)
    for file in (folder, published):
        kind = identify(file)
        assert (kind.family, kind.is_denoiser) == ("wuerstchen", True)
    read: Any = load_tiny(tiny_wuerstchen, "wuerstchen", part_files={"prior": str(published)}).parts["prior"].module
    assert all(torch.equal(read.state_dict()[name], tensor) for name, tensor in load_file(folder).items())
    decoder = identify(tiny_wuerstchen / "decoder" / "diffusion_pytorch_model.safetensors")
    assert (decoder.is_denoiser, decoder.family) == (False, "")
    assert "Wuerstchen decoder" in decoder.sentence


def test_lora_files_have_the_names_of_diffusers_layers(family: ModelFamily) -> None:
    """Stable Cascade's have those of the published files, which are read here, too."""
    targets = family.lora_naming.targets
    [target] = [t for t in targets.all if t.path == "blocks.2.attention.to_q"]
    assert target.kohya_name == "lora_prior_unet_blocks_2_attention_to_q"
    assert targets.by_name["denoiser", "blocks_2_attention_attn_to_q"] == (target,)


# -- OneTrainer's configs


@pytest.mark.parametrize("method", ["FINE_TUNE", "LORA", "EMBEDDING"])
@pytest.mark.parametrize("version", [None, 0, 1])
def test_flat_configs_of_onetrainer_keep_the_places_of_the_parts(version: int | None, method: str) -> None:
    tree: dict[str, Any] = {
        "model_type": "WUERSTCHEN_2",
        "training_method": method,
        "base_model_name": "warp-ai/wuerstchen-prior",
        "prior_model_name": "",
        "prior_weight_dtype": "BFLOAT_16",
        "text_encoder_weight_dtype": "BFLOAT_16",
        "decoder_model_name": "warp-ai/wuerstchen",
        "decoder_weight_dtype": "BFLOAT_16",
        "decoder_text_encoder_weight_dtype": "BFLOAT_16",
        "decoder_vqgan_weight_dtype": "FLOAT_32",
        "effnet_encoder_model_name": "dome272/wuerstchen/model_v2_stage_b.pt",
        "effnet_encoder_weight_dtype": "FLOAT_32",
        "train_prior": True,
        "resolution": "1024",
        "batch_size": 4,
        **({} if version is None else {"__version": version}),
    }
    loaded = decode(tree)
    assert not [p for p in loaded.problems if p.severity != "info"]
    model, parts = (encode(loaded.config)[name] for name in ("model", "parts"))
    assert model["base_model"] == "warp-ai/wuerstchen-prior"
    assert model["family"] == {
        "name": "wuerstchen", "decoder": "warp-ai/wuerstchen", "effnet_encoder": "dome272/wuerstchen"
    }  # fmt: skip
    assert (parts["prior"]["dtype"], parts["vae"]["dtype"]) == ("bfloat16", "bfloat16")
    trains = {"FINE_TUNE": "full", "LORA": "adapter", "EMBEDDING": "embedding"}
    assert loaded.config.training.trains == trains[method]


def test_a_file_of_the_encoder_in_a_config_of_onetrainer_is_kept() -> None:
    own = {"model_name": "D:/effnet.pt", "weight_dtype": "FLOAT_32"}
    theirs = {"__version": 6, "model_type": "WUERSTCHEN_2", "effnet_encoder": own, "prior": {"model_name": "c.pt"}}
    tree = encode(decode(theirs).config)
    assert tree["model"]["family"]["effnet_encoder"] == "D:/effnet.pt"
    assert tree["parts"]["prior"]["file"] == "c.pt"


@pytest.mark.full
def test_an_embedding_is_trained_from_a_config_of_onetrainer(tiny_wuerstchen: Path, tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(128, 128)] * 2, captions=["a <word>", "<word>"])
    tree = {
        "__version": 6,
        "model_type": "WUERSTCHEN_2",
        "training_method": "EMBEDDING",
        "embedding": {"placeholder": "<word>", "token_count": 2, "initial_embedding_text": "disc"},
        "text_encoder": {"train": False},
        "batch_size": 2,
        "resolution": "128",
    }
    loaded = decode(tree)
    assert not [p for p in loaded.problems if p.severity != "info"]
    ours = encode(small_config(tmp_path, model=tiny_wuerstchen, images=images))
    family = {"name": "wuerstchen", "decoder": str(tiny_wuerstchen)}
    here = {name: ours[name] for name in ("general", "concepts", "data")}
    here |= {"model": {"base_model": str(tiny_wuerstchen), "family": family}, "training": {"epochs": 1}}
    here |= {"output": {"destination": str(tmp_path / "word.safetensors")}}
    ran = run(laid_over(loaded.config, here))
    assert ran.finished.outcome == "finished"
    assert load_file(ran.finished.model_path)["clip_g"].shape == (2, 24)
