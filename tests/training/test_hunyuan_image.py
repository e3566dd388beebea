"""HunyuanImage 2.1 alone: quoted text, padding, guidance of its pipeline, its files, the distilled model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import ByT5Tokenizer

from modules.config.codec import decode
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.hunyuan_image.files import TRANSFORMER_FILE, path_in_comfy
from modules.families.hunyuan_image.model import DROPPED, HunyuanImage, HunyuanImageConditioning, glyph_text
from modules.families.hunyuan_image.spec import HUNYUAN_IMAGE
from modules.families.hunyuan_image.vae_file import vae_slots
from modules.families.kinds.identify import identify, who_loads_file
from modules.families.parts.circular_padding import pad_circularly
from modules.families.parts.single_file.checkpoint import load_vae_file
from modules.families.parts.single_file.moves import to_original
from modules.families.parts.t5_tokens import byte_tokenizer
from modules.families.parts.vae import encode_mean
from modules.families.registry import files_of
from modules.formats.lazy_tensors import lazy_state
from modules.formats.safetensors_io import read_safetensors
from modules.system.errors import DarkroomError
from tests.builders.configs import config_fixture, laid_over
from tests.builders.hunyuan_image import (
    hunyuan_image_pipeline,
    pipeline_text,
    tiny_transformer,
    write_hunyuan_image_folder,
)
from tests.builders.models import remove_weights
from tests.builders.pipelines import denoiser_of, family_fixture, load_tiny, noise_of
from tests.builders.runs import assert_equal_tensors, run
from tests.unit.test_kinds import write_header
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate

BASE: dict[str, Any] = {
    "data": {"latent_cache": True, "text_cache": True},
    "training": {"epochs": 1, "batch_size": 2, "learning_rate": 0.01, "noise": {"distribution": "logit_normal"}},
    "output": {"dtype": "float32", "format": "comfyui"},
}
TIMESTEPS = torch.tensor([300.0, 700.0])
QUOTED = "a sign that says \"OPEN\" and 'café', “你好”"
config = config_fixture("tiny_hunyuan_image", BASE)
family = family_fixture("tiny_hunyuan_image", HUNYUAN_IMAGE.name)


# -- quoted text


def test_the_text_in_quotes_is_read_as_in_the_pipeline() -> None:
    assert glyph_text(QUOTED) == 'Text "café". Text "OPEN". Text "你好". '
    assert glyph_text("a disc") == ""
    assert glyph_text('an empty ""') == 'Text "". '


@pytest.mark.parametrize("text", ["a", " Text ‘é’ \n", "你好 🙂"])
def test_byt5_has_an_id_for_each_byte(text: str) -> None:
    theirs = ByT5Tokenizer()(text).input_ids
    assert byte_tokenizer().read(text, 128) == theirs
    assert byte_tokenizer().read(text, 3) == [*theirs[:-1][:2], 1]


@torch.no_grad()
@pytest.mark.parametrize("prompt", [QUOTED, '"' + "a" * 300 + '"'])
def test_the_states_of_quoted_text_are_those_of_the_pipeline(
    tiny_hunyuan_image: Path, family: HunyuanImage, prompt: str
) -> None:
    ours = family.encode_prompts([prompt]).tensors()
    theirs = pipeline_text(hunyuan_image_pipeline(tiny_hunyuan_image, family), prompt)
    assert ours.keys() == theirs.keys() == {"states", "glyphs_states"}
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_prediction_is_the_one_for_the_padded_prompt_in_diffusers(
    tiny_hunyuan_image: Path, family: HunyuanImage
) -> None:
    """The pipeline pads to 1000 tokens and 128 bytes; no result depends on them. A wide image."""
    prompts = [QUOTED, "two squares in front of a wall"]
    pipe = hunyuan_image_pipeline(tiny_hunyuan_image, family)
    states, mask, glyphs, glyph_mask = pipe.encode_prompt(prompts, device="cpu", batch_size=2)
    noisy = torch.randn(2, 64, 3, 5, generator=torch.Generator().manual_seed(1))
    theirs = family.denoiser(
        hidden_states=noisy,
        timestep=TIMESTEPS,
        encoder_hidden_states=states,
        encoder_attention_mask=mask,
        encoder_hidden_states_2=glyphs,
        encoder_attention_mask_2=glyph_mask,
    ).sample
    text = family.encode_prompts(prompts)
    torch.testing.assert_close(family.predict(noisy, TIMESTEPS, text), theirs, rtol=1e-5, atol=1e-5)
    without = family.with_empty_prompts(text, [{1}, set()], family.encode_prompts([""]))
    assert not torch.allclose(family.predict(noisy, TIMESTEPS, without)[:1], theirs[:1], atol=1e-3)
    torch.testing.assert_close(family.predict(noisy, TIMESTEPS, without)[1:], theirs[1:], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_cached_prompts_with_and_without_quotes_are_joined(family: HunyuanImage) -> None:
    prompts = ["a disc", QUOTED, "b"]
    whole, empty = family.encode_prompts(prompts), family.encode_prompts([""])
    entries = [HunyuanImageConditioning.from_tensors(whole.select([i]).tensors()) for i in range(3)]
    assert [any(entry.glyphs.lengths) for entry in entries] == [False, True, False]
    joined = family.join(entries, empty)
    again = HunyuanImageConditioning.from_tensors(joined.tensors())
    for other in (joined, again):
        assert torch.equal(other.text.states_BLD, whole.text.states_BLD)
        assert torch.equal(other.glyphs.states_BLD, whole.glyphs.states_BLD)
        assert other.glyphs.lengths == whole.glyphs.lengths
    dropped = family.with_empty_prompts(whole, [set(), {0}, {1}], empty)
    assert torch.equal(dropped.text.split()[1], empty.text.split()[0])
    assert torch.equal(dropped.glyphs.split()[1], whole.glyphs.split()[1])


@torch.no_grad()
def test_times_are_not_rounded_in_bfloat16(tiny_hunyuan_image: Path) -> None:
    """Its step is 4 there; diffusers' pipeline rounds them."""
    family: HunyuanImage = load_tiny(tiny_hunyuan_image, HUNYUAN_IMAGE.name)
    text = family.encode_prompts(["a disc"])
    denoiser_of(family).to(torch.bfloat16)
    noisy = noise_of(family, batch=1, seed=1)
    one, other = (family.predict(noisy, torch.tensor([time]), text) for time in (997.0, 998.0))
    assert one.dtype == torch.bfloat16
    assert not torch.equal(one, other)


def test_all_but_the_layers_of_quoted_text_learn(family: HunyuanImage) -> None:
    transformer = denoiser_of(family).requires_grad_(True)
    text = family.encode_prompts(["a disc", "two squares"])
    family.predict(noise_of(family, batch=2, seed=1), TIMESTEPS, text).square().mean().backward()
    without = [n for n, p in transformer.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == [n for n, _ in transformer.named_parameters() if not family.reaches("transformer", n)]
    assert without
    assert all(name.startswith("context_embedder_2.") for name in without)


def test_the_template_has_34_tokens_before_a_prompt(family: HunyuanImage) -> None:
    reader = family.reader
    assert len(reader.tokenizer.ids(reader.template.before)) == DROPPED == 34
    assert reader.template.after == "<|im_end|>"
    assert len(reader.ids("a " * 900)) == DROPPED + 1000


# -- the VAE


@torch.no_grad()
def test_the_vae_pads_circularly(family: HunyuanImage) -> None:
    """An image that is moved by whole latents, around its edges, has the latents moved."""
    pad_circularly(family.vae)
    images = torch.rand(1, 3, 128, 128, generator=torch.Generator().manual_seed(1)) * 2 - 1
    latents, moved = (encode_mean(family.vae, i, factor=32) for i in (images, images.roll((64, 32), (2, 3))))
    torch.testing.assert_close(moved, latents.roll((2, 1), (2, 3)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_a_file_of_the_vae_is_read(
    tiny_hunyuan_image: Path, family: HunyuanImage, config: Config, tmp_path: Path, layout: str
) -> None:
    state = dict(family.vae.state_dict())
    if layout == "original":
        lazy = to_original(vae_slots(family.vae.config), lazy_state(state))
        state = {name: tensor.make().contiguous() for name, tensor in lazy.items()}
        assert {"encoder.down.4.downsample.conv.weight", "decoder.up.5.block.1.conv2.weight"} <= state.keys()
        assert {"decoder.mid.attn_1.proj_out.weight", "encoder.mid.block_2.norm1.bias"} <= state.keys()
        assert not [name for name in state if "_blocks." in name or "mid_block" in name]
    save_file(state, file := tmp_path / "vae.safetensors")
    assert identify(file).sentence == f"A VAE alone, in the {layout} layout, float32."
    assert identify(file).facts["class"] == "AutoencoderKLHunyuanImage"
    tree = {"model": {"base_model": str(tiny_hunyuan_image)}, "parts": {"vae": {"file": str(file)}}}
    assert not check(laid_over(config, tree)).errors
    part = HUNYUAN_IMAGE.parts[-1]
    loaded = load_vae_file(file, part.model, dict(family.vae.config), torch.float32)
    assert_equal_tensors(dict(loaded.state_dict()), dict(family.vae.state_dict()))


def test_the_published_vae_has_no_layer_that_the_original_layout_lacks() -> None:
    config = files_of("hunyuan_image").models[0].shipped_configs()["vae"]
    names = {slot.original for slot in vae_slots(config)}
    assert len(names) == len(vae_slots(config))
    assert {"decoder.up.5.block.2.conv2.weight", "decoder.up.4.upsample.conv.bias"} <= names
    assert not [name for name in names if "shortcut" in name or "_blocks." in name]


# -- files


def native_state(family: HunyuanImage) -> dict[str, torch.Tensor]:
    """The transformer as the published file has it."""
    slots = TRANSFORMER_FILE.layout(family.denoiser.config).slots
    state = lazy_state(denoiser_of(family).state_dict())
    return {name: tensor.make().contiguous() for name, tensor in to_original(slots, state).items()}


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_a_file_of_the_transformer_is_read(
    tiny_hunyuan_image: Path, family: HunyuanImage, config: Config, tmp_path: Path, prefix: str
) -> None:
    file = tmp_path / "transformer.safetensors"
    save_file({f"{prefix}{n}": t for n, t in native_state(family).items()}, file)
    kind = identify(file)
    assert (kind.kind, kind.sentence) == ("part", "A HunyuanImage 2.1 transformer alone, float32.")
    tree = {"model": {"base_model": str(tiny_hunyuan_image)}, "parts": {"transformer": {"file": str(file)}}}
    assert not check(laid_over(config, tree)).errors


def test_a_transformer_in_diffusers_layout_is_recognized(family: HunyuanImage, tmp_path: Path) -> None:
    save_file(denoiser_of(family).state_dict(), file := tmp_path / "transformer.safetensors")
    assert identify(file).family == "hunyuan_image"


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("byt5_in.fc1.weight", "time_r_in.mlp.0.weight"), "A distilled HunyuanImage 2.1 model, which"),
        (("time_in.mlp.0.weight",), "A refiner of HunyuanImage 2.1, which"),
    ],
)
def test_files_of_the_distilled_model_and_of_the_refiner_are_named(
    names: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    usual = ("double_blocks.0.img_attn_q.weight", "txt_in.individual_token_refiner.blocks.0.norm1.weight")
    kind = identify(write_header(tmp_path / "x.safetensors", dict.fromkeys((*usual, *names), (8, 8))))
    assert (kind.kind, kind.sentence.startswith(sentence)) == ("other_model", True)


def test_the_distilled_model_is_refused(config: Config, tmp_path: Path, one_thread: None) -> None:
    folder = write_hunyuan_image_folder(tmp_path / "other", use_meanflow=True)
    errors = check(laid_over(config, {"model": {"base_model": str(folder)}})).errors
    assert any("distilled" in error.message for error in errors)
    errors = check(laid_over(config, {"sampling": {"model": str(folder)}})).errors
    assert any("another architecture than the base model" in error.message for error in errors)
    remove_weights(folder)
    with pytest.raises(DarkroomError, match=r"is the distilled HunyuanImage 2\.1"):  # by its config alone
        load_tiny(folder, HUNYUAN_IMAGE.name)


def test_a_lora_in_comfyuis_form_has_the_names_of_comfyui(config: Config) -> None:
    ran = run(laid_over(config, {"adapter": {"layers": "all"}}))
    saved = Path(ran.finished.model_path)
    tensors = read_safetensors(saved)[0]
    layers = {n.removeprefix("diffusion_model.").partition(".lora_")[0] for n in tensors if not n.endswith(".alpha")}
    slots = TRANSFORMER_FILE.layout(tiny_transformer().config).slots
    assert layers < {path_in_comfy(slot.original.removesuffix(".weight")) for slot in slots}
    assert {"double_blocks.1.txt_attn.qkv", "double_blocks.0.img_mlp.0", "single_blocks.0.modulation.lin"} <= layers
    assert {"txt_in.t_embedder.in_layer", "time_in.out_layer", "single_blocks.1.linear1", "img_in.proj"} <= layers
    assert not [layer for layer in layers if layer.startswith("byt5_in")]


@pytest.mark.parametrize(
    ("layers", "loads"),
    [
        (("diffusion_model.double_blocks.0.img_attn.proj", "diffusion_model.double_blocks.0.img_mlp.0"), "all"),
        (("lora_unet_double_blocks_0_img_attn_proj", "lora_unet_double_blocks_0_img_mlp_0"), "all"),
        (("lora_unet_double_blocks_0_img_attn_proj", "lora_unet_double_blocks_0_img_mlp_fc1"), "part"),
        (("transformer.transformer_blocks.0.attn.to_out.0", "transformer.transformer_blocks.0.ff.net.0.proj"), "none"),
    ],
)
def test_which_names_comfyui_loads(layers: tuple[str, str], loads: str, tmp_path: Path) -> None:
    shapes = {}
    for layer, rows in zip(layers, (3584, 14336), strict=True):
        ends = ("lora_A", "lora_B") if "." in layer else ("lora_down", "lora_up")
        shapes |= {f"{layer}.{ends[0]}.weight": (4, 3584), f"{layer}.{ends[1]}.weight": (rows, 4)}
    kind, found = who_loads_file(write_header(tmp_path / "lora.safetensors", shapes))
    assert kind.model == "hunyuan_image"
    assert {x.program: x.loads for x in found}["ComfyUI"] == loads
    assert {x.program: x.loads for x in found}["diffusers"] == "none"


def test_a_lora_continues_in_the_names_of_sd_scripts(config: Config, tmp_path: Path) -> None:
    """It names the MLPs as the published checkpoint does."""
    ran = run(laid_over(config, {"output": {"format": "kohya"}}))
    saved = Path(ran.finished.model_path)
    names = {name.partition(".")[0] for name in read_safetensors(saved)[0]}
    assert {"lora_unet_double_blocks_0_img_mlp_fc1", "lora_unet_double_blocks_0_img_attn_qkv"} <= names
    output = {"destination": str(tmp_path / "next.safetensors")}
    assert not check(laid_over(config, {"adapter": {"start_from": str(saved)}, "output": output})).errors


def test_the_layers_are_all_linear_layers_norms_and_convolutions_of_the_transformer() -> None:
    transformer = tiny_transformer()
    layers = files_of("hunyuan_image").models[0].adapter_targets({"transformer": transformer.config})
    kinds = (torch.nn.Linear, torch.nn.LayerNorm, torch.nn.Conv2d)
    modules = {n: m.weight for n, m in transformer.named_modules() if isinstance(m, kinds) and m.weight is not None}
    assert {target.path: target.weight for target in layers.all} == {n: (*w.shape,) for n, w in modules.items()}


def test_a_saved_folder_has_the_guider_of_its_model(config: Config, tmp_path: Path) -> None:
    """Without it diffusers' pipeline does not guide its samples."""
    tree = {
        "training": {"trains": "full", "learning_rate": 1e-4},
        "parts": {"transformer": {"train": True}},
        "output": {"destination": str(tmp_path / "saved"), "model_format": "diffusers"},
    }
    saved = Path(run(laid_over(config, tree)).finished.model_path)
    index = json.loads((saved / "model_index.json").read_text(encoding="utf-8"))
    assert index["guider"] == ["diffusers", "AdaptiveProjectedMixGuidance"]
    assert "ocr_guider" not in index
    assert (saved / "guider" / "guider_config.json").is_file()
    assert identify(saved).sentence == "A HunyuanImage 2.1 model in diffusers' folder layout."


# -- shift and memory


def test_the_shift_is_5_or_the_schedulers() -> None:
    flow = HUNYUAN_IMAGE.process.flow
    assert flow is not None
    assert [flow.with_scheduler(s).shift_at(2048, 2048) for s in ({}, {"shift": 4.0})] == [5.0, 4.0]


@pytest.mark.parametrize(("dtype", "least", "most"), [("bfloat16", 35.0, 42.0), ("int8", 17.5, 25.0)])
def test_the_published_model_needs_the_estimated_memory_at_2048_px(dtype: str, least: float, most: float) -> None:
    """Its weights alone are 34.9 GB in bfloat16; nothing is measured yet."""
    parts = {name: {"dtype": "nfloat4"} for name in HUNYUAN_IMAGE.names_of("text_encoder")}
    parts |= {"transformer": {"dtype": dtype, "checkpointing": "block"}}
    tree = {"model": {"family": "hunyuan_image", "base_model": "hunyuanvideo-community/HunyuanImage-2.1-Diffusers"}}
    tree |= {"training": {"precision": "bfloat16"}, "data": {"resolution_px": [2048]}, "parts": parts}
    estimate = memory_estimate(decode({"darkroom_version": 7, **tree}).config, {Size(2048, 2048): 10})
    assert estimate is not None
    assert least < estimate.peak.total_bytes / 1e9 < most
