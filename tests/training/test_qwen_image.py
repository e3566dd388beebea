"""Qwen-Image alone: its text, its mask, its tokenizer, distilled models, its files, configs of other programs."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2Tokenizer

from modules.config.codec import decode
from modules.config.imports.ai_toolkit import tree_of_ai_toolkit
from modules.config.imports.kohya_settings import tree_of_kohya
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.kinds.identify import identify
from modules.families.parts.chat_tokens import load_chat_tokenizer
from modules.families.parts.single_file.checkpoint import load_part_file
from modules.families.qwen_image.model import QwenImage
from modules.families.qwen_image.spec import QWEN_IMAGE
from modules.system.errors import DarkroomError
from tests.builders.configs import config_fixture, laid_over
from tests.builders.pipelines import family_fixture, load_tiny, noise_of
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate

LIGHTNING = {"base_shift": math.log(3), "max_shift": math.log(3), "shift_terminal": None}


config = config_fixture("tiny_qwen_image", {"training": {"epochs": 1, "noise": {"distribution": "logit_normal"}}})
family = family_fixture("tiny_qwen_image", QWEN_IMAGE.name)


@torch.no_grad()
def test_prompts_of_two_lengths_predict_as_each_alone(family: QwenImage) -> None:
    prompts, noisy = ["a disc", "a disc and a very long square"], noise_of(family, batch=2, seed=0)
    times = torch.tensor([250.0, 700.0])
    both = family.predict(noisy, times, family.encode_prompts(prompts))
    for index, prompt in enumerate(prompts):
        alone = family.predict(noisy[index : index + 1], times[index : index + 1], family.encode_prompts([prompt]))
        torch.testing.assert_close(both[index : index + 1], alone, rtol=0, atol=1e-5)


def test_a_mask_is_passed_for_unequal_lengths_alone(family: QwenImage) -> None:
    masks: list[Any] = []
    family.denoiser.register_forward_pre_hook(
        lambda _, __, given: masks.append(given["encoder_hidden_states_mask"]), with_kwargs=True
    )
    for prompts in (["a disc", "a ring"], ["a disc", "a disc and a ring"]):
        family.predict(noise_of(family, batch=2, seed=0), torch.tensor([1.0, 2.0]), family.encode_prompts(prompts))
    assert masks[0] is None
    assert masks[1].dtype == torch.bool
    assert masks[1].sum(1).tolist() == list(family.encode_prompts(["a disc", "a disc and a ring"]).lengths)


def test_an_empty_prompt_is_a_space_in_the_template(family: QwenImage) -> None:
    empty, space = (family.encode_prompts([prompt]).states_BLD for prompt in ("", " "))
    assert torch.equal(empty, space)
    assert empty.shape[1] == 1 + len(family.reader.tokenizer.ids(family.reader.template.after))


def test_the_vision_tower_is_not_loaded(family: QwenImage, tiny_qwen_image: Path) -> None:
    stored = load_file(tiny_qwen_image / "text_encoder" / "model.safetensors")
    assert any(name.startswith("visual.") for name in stored)
    names = {name for name, _ in family.modules["text_encoder"].named_parameters()}
    assert names == {n.removeprefix("model.") for n in stored if not n.startswith(("visual.", "lm_head."))}


def test_a_folder_may_have_the_names_of_newer_versions_of_transformers(
    family: QwenImage, tiny_qwen_image: Path, tmp_path: Path
) -> None:
    """They have the whole Qwen2.5-VL under `model.`, and its language model under a name of its own."""
    shutil.copytree(tiny_qwen_image, folder := tmp_path / "model")
    file = folder / "text_encoder" / "model.safetensors"
    names = {"model.": "model.language_model.", "visual.": "model.visual."}
    stored = {re.sub("^(model|visual)[.]", lambda m: names[m[0]], n): t for n, t in load_file(file).items()}
    save_file(stored, file, {"format": "pt"})
    read, ours = (f.modules["text_encoder"].state_dict() for f in (load_tiny(folder), family))
    assert all(torch.equal(tensor, read[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("text", ["a disc", "L'été, 12 cm!\n\n  two", "<|im_start|>user\nx<|im_end|>", "日本 😀"])
def test_a_folder_without_a_tokenizer_json_has_the_tokens_of_transformers(tiny_qwen_image: Path, text: str) -> None:
    folder = tiny_qwen_image / "tokenizer"
    assert not (folder / "tokenizer.json").exists()
    theirs = Qwen2Tokenizer.from_pretrained(folder, local_files_only=True)
    assert load_chat_tokenizer(folder).ids(text) == theirs(text, add_special_tokens=False)["input_ids"]


# -- which model it is


def with_file(model: Path, copy: Path, name: str, **changes: Any) -> Path:
    shutil.copytree(model, copy)
    file = copy / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return copy


def test_lightnings_shift_marks_a_distilled_model(config: Config, tiny_qwen_image: Path, tmp_path: Path) -> None:
    scheduler = "scheduler/scheduler_config.json"
    quick = with_file(tiny_qwen_image, tmp_path / "quick", scheduler, **LIGHTNING)
    told = [p.message for p in check(laid_over(config, {"model": {"base_model": str(quick)}})).problems]
    assert any("distilled" in message and "a fixed dynamic shift" in message for message in told)
    assert not any("distilled" in p.message for p in check(config).problems)


@pytest.mark.parametrize("key", ["use_layer3d_rope"])
def test_other_models_of_the_series_are_refused(tiny_qwen_image: Path, tmp_path: Path, key: str) -> None:
    other = with_file(tiny_qwen_image, tmp_path / "other", "transformer/config.json", **{key: True})
    with pytest.raises(DarkroomError, match="which is not supported"):
        load_tiny(other, QWEN_IMAGE.name)


# -- files


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "diffusion_model."])
def test_a_file_of_the_transformer_is_read(family: QwenImage, tmp_path: Path, prefix: str) -> None:
    state, file = family.denoiser.state_dict(), tmp_path / "qwen.safetensors"
    save_file({f"{prefix}{name}": tensor for name, tensor in state.items()}, file)
    assert (identify(file).kind, identify(file).family) == ("part", QWEN_IMAGE.name)
    read = load_part_file(file, QWEN_IMAGE, QWEN_IMAGE.denoiser, dict(family.denoiser.config), torch.float32)
    assert all(torch.equal(tensor, state[name]) for name, tensor in read.state_dict().items())
    ours = read.pos_embed.pos_freqs  # which no file has
    assert torch.equal(ours, family.denoiser.pos_embed.pos_freqs)


def test_the_mark_of_2511_in_a_file_is_read(tiny_qwen_image: Path, family: QwenImage, tmp_path: Path) -> None:
    file = tmp_path / "edit.safetensors"
    save_file({**family.denoiser.state_dict(), "__index_timestep_zero__": torch.zeros(1)}, file)
    read = load_tiny(tiny_qwen_image, QWEN_IMAGE.name, part_files={"transformer": str(file)})
    assert read.denoiser.config.zero_cond_t
    assert not family.denoiser.config.zero_cond_t


@pytest.mark.parametrize("whole", ["model.", "model.language_model."])
def test_the_text_encoder_is_read_from_a_file_of_the_whole_model(
    family: QwenImage, tiny_qwen_image: Path, tmp_path: Path, whole: str
) -> None:
    stored = load_file(tiny_qwen_image / "text_encoder" / "model.safetensors")
    file = tmp_path / "qwen_2.5_vl_7b.safetensors"
    save_file({n.replace("model.", whole, 1) if n.startswith("model.") else n: t for n, t in stored.items()}, file)
    encoder = family.modules["text_encoder"]
    part = next(p for p in QWEN_IMAGE.parts if p.role == "text_encoder")
    read = load_part_file(file, QWEN_IMAGE, part, encoder.config.to_dict(), torch.float32)
    assert all(torch.equal(tensor, encoder.state_dict()[name]) for name, tensor in read.state_dict().items())


# -- memory


@pytest.mark.parametrize(("dtype", "least", "most"), [("bfloat16", 38.0, 46.0), ("int8", 21.0, 28.0)])
def test_the_published_model_needs_the_known_memory_at_1024_px(dtype: str, least: float, most: float) -> None:
    """SimpleTuner measured 41.0 GB with bf16 weights and 24.1 with int8 ones; musubi-tuner 42 with bf16."""
    parts = {"transformer": {"dtype": dtype, "checkpointing": "block"}, "text_encoder": {"dtype": dtype}}
    tree = {"model": {"family": "qwen_image", "base_model": "Qwen/Qwen-Image"}, "parts": parts}
    tree |= {"training": {"precision": "bfloat16"}, "data": {"resolution_px": [1024]}}
    estimate = memory_estimate(decode({"darkroom_version": 7, **tree}).config, {Size(1024, 1024): 10})
    assert estimate is not None
    assert least < estimate.peak.total_bytes / 1e9 < most


# -- configs of other programs


def test_settings_of_musubi_tuner() -> None:
    given = {
        "network_module": "networks.lora_qwen_image",
        "network_dim": 16,
        "network_alpha": 16,
        "dit": "qwen_image_bf16.safetensors",
        "text_encoder": "qwen_2.5_vl_7b.safetensors",
        "vae": "qwen_image_vae.safetensors",
        "timestep_sampling": "shift",
        "discrete_flow_shift": 2.2,
        "weighting_scheme": "none",
        "model_prediction_type": "raw",
        "fp8_base": True,
        "fp8_scaled": True,
        "blocks_to_swap": 45,
    }
    notes: list[Any] = []
    config = decode(tree_of_kohya(given, notes)).config
    assert (config.family.name, config.model.base_model) == (QWEN_IMAGE.name, "qwen_image_bf16.safetensors")
    assert config.part("text_encoder").file == "qwen_2.5_vl_7b.safetensors"
    assert config.part("vae").file == "qwen_image_vae.safetensors"
    assert (config.training.noise.distribution, config.training.noise.shift) == ("logit_normal", 2.2)
    assert config.part("transformer").dtype == "float8"
    assert not [note for note in notes if note.severity != "info"]


@pytest.mark.parametrize("arch", ["qwen_image", "qwen_image:2512"])
def test_a_config_of_ai_toolkit(arch: str) -> None:
    process = {
        "type": "diffusion_trainer",
        "model": {"name_or_path": "Qwen/Qwen-Image-2512", "arch": arch, "quantize": True, "qtype": "qfloat8"},
        "network": {"type": "lora", "linear": 32, "linear_alpha": 32},
        "train": {"noise_scheduler": "flowmatch", "timestep_type": "sigmoid", "lr": 1e-4},
    }
    notes: list[Any] = []
    tree = tree_of_ai_toolkit({"job": "extension", "config": {"name": "x", "process": [process]}}, notes)
    config = decode(tree).config
    assert (config.family.name, config.model.base_model) == (QWEN_IMAGE.name, "Qwen/Qwen-Image-2512")
    assert (config.adapter.rank, config.part("transformer").dtype) == (32, "float8")
