"""Stable Diffusion 3 alone: absent text encoders, single files, three encoders; what all flow families share is in
tests/training/flow.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.config.codec import decode, encode
from modules.config.rules import RULES
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.kinds.identify import identify, who_loads_file
from modules.families.parts.conditioning import pooled_name
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.models import layouts, shipped_configs
from modules.families.parts.single_file.write import file_state
from modules.families.sd3.model import StableDiffusion3
from modules.families.sd3.spec import SD3, unread_queries
from modules.formats.lazy_tensors import lazy_state
from modules.formats.safetensors_io import read_safetensors
from modules.system.factories import load_factory
from tests.builders.configs import config_fixture, laid_over
from tests.builders.pipelines import family_fixture, load_tiny, noise_of
from tests.builders.runs import losses, run
from tests.builders.sd3 import CLIP_WIDTHS, T5_WIDTH, TINY, sd3_pipeline, write_sd3_folder
from trainer.__main__ import main
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate

ENCODERS = SD3.names_of("text_encoder")
TOKENS = 16
BASE: dict[str, Any] = {
    "data": {"latent_cache": True, "text_cache": True},
    "model": {"family": {"text_tokens": TOKENS}},
    "training": {"epochs": 1, "batch_size": 2, "learning_rate": 0.01, "noise": {"distribution": "logit_normal"}},
    "output": {"dtype": "float32"},
}
FROZEN_TEXT = {name: {"train": False} for name in ENCODERS}
TIMESTEPS = torch.tensor([300.0])


config = config_fixture("tiny_sd3", BASE)
family = family_fixture("tiny_sd3", SD3.name, text_tokens=TOKENS)


@pytest.fixture(scope="module")
def without_t5(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return write_sd3_folder(tmp_path_factory.mktemp("models") / "tiny-sd3-clips", without=["text_encoder_3"])


@pytest.fixture(scope="module")
def single(tiny_sd3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as one file with all of its text encoders."""
    file = tmp_path_factory.mktemp("single") / "sd3.safetensors"
    assert main(["convert", str(tiny_sd3), str(file), "--to", "single"]) == 0
    return file


# -- absent text encoders


@torch.no_grad()
def test_a_model_without_t5_is_that_of_diffusers_pipeline(without_t5: Path) -> None:
    """Zeros in place of T5's 256 states."""
    family: StableDiffusion3 = load_tiny(without_t5, SD3.name)
    assert family.spec.names_of("text_encoder") == ENCODERS[:2]
    pipe = sd3_pipeline(without_t5, family)
    states, _, pooled, _ = pipe.encode_prompt("a disc", None, None, device="cpu", do_classifier_free_guidance=False)
    ours = family.encode_prompts(["a disc"]).joint(T5_WIDTH, sum(CLIP_WIDTHS.values()), family.t5_tokens)
    torch.testing.assert_close(ours, (states, pooled), rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("left", ENCODERS)
def test_what_the_transformer_reads_of_one_encoder_is_where_all_three_have_it(
    tiny_sd3: Path, family: StableDiffusion3, left: str
) -> None:
    absent = set(ENCODERS) - {left}
    one: StableDiffusion3 = load_tiny(tiny_sd3, SD3.name, text_tokens=TOKENS, left_out=absent)
    assert one.modules.keys() == {"transformer", left, "vae"}
    widths = (T5_WIDTH, sum(CLIP_WIDTHS.values()), TOKENS)
    (states, pooled), (alone, alone_pooled) = (f.encode_prompts(["a disc"]).joint(*widths) for f in (family, one))
    first = CLIP_WIDTHS["text_encoder"]
    is_clip = torch.zeros(states.shape[1:], dtype=torch.bool)
    is_clip[:77] = True
    columns = torch.arange(T5_WIDTH)
    of = {
        "text_encoder": is_clip & (columns < first),
        "text_encoder_2": is_clip & (columns >= first),
        "text_encoder_3": ~is_clip,
    }[left]
    torch.testing.assert_close(alone, torch.where(of, states, 0.0))
    pooled_of = {"text_encoder": slice(0, first), "text_encoder_2": slice(first, None), "text_encoder_3": slice(0, 0)}
    expected = torch.zeros_like(pooled)
    expected[:, pooled_of[left]] = pooled[:, pooled_of[left]]
    torch.testing.assert_close(alone_pooled, expected)


def test_a_run_leaves_out_encoders(config: Config, tmp_path: Path) -> None:
    """Neither loaded nor trained, cached or estimated; the result is read by a run that leaves out the same."""
    off = {"parts": {"text_encoder_3": {"include": False}}, "output": {"format": "kohya"}}
    trained = laid_over(config, off)
    assert "text_encoder_3" not in {part.name for part in trained.family.parts}
    assert not check(trained).errors
    estimates = [memory_estimate(each, {Size(64, 64): 4}) for each in (config, trained)]
    peaks = [estimate.peak.total_bytes for estimate in estimates if estimate is not None]
    assert peaks[1] < peaks[0]
    ran = run(trained)
    names = read_safetensors(Path(ran.finished.model_path))[0]
    assert {name.split("_")[1] for name in names} == {"unet", "te1", "te2"}
    entries = [load_file(file) for file in (tmp_path / "cache" / "text").rglob("*.safetensors")]
    assert all("text_encoder_3" not in entry for entry in entries)
    assert decode(encode(trained)).config == trained


def test_the_base_model_may_lack_encoders(config: Config, without_t5: Path, tmp_path: Path) -> None:
    lacking = laid_over(config, {"model": {"base_model": str(without_t5)}, "training": {"trains": "full"}})
    lacking = laid_over(lacking, {"output": {"model_format": "diffusers", "destination": str(tmp_path / "tuned")}})
    assert not check(lacking).errors
    saved = Path(run(lacking).finished.model_path)
    index = json.loads((saved / "model_index.json").read_text())
    assert index["text_encoder_3"] == index["tokenizer_3"] == [None, None]
    assert identify(saved).without == {"text_encoder_3"}
    assert main(["convert", str(saved), str(tmp_path / "single.safetensors")]) == 0
    assert identify(tmp_path / "single.safetensors").without == {"text_encoder_3"}


def test_no_run_goes_without_any_encoder(config: Config) -> None:
    off = laid_over(config, {"parts": {name: {"include": False} for name in ENCODERS}})
    [error] = [p for rule in RULES for p in rule(off) if p.severity == "error"]
    assert error.path == "parts.text_encoder.include"


@pytest.mark.full
def test_captions_are_dropped_for_each_encoder(config: Config) -> None:
    def first_loss(**dropout: float) -> float:
        return losses(run(laid_over(config, {"data": dropout, "parts": FROZEN_TEXT})))[0]

    one, other = first_loss(caption_dropout_3=1.0), first_loss(caption_dropout_2=1.0)
    assert len({one, other, first_loss(caption_dropout=1.0), first_loss()}) == 4


# -- single files


def test_a_single_file_has_the_published_names(single: Path) -> None:
    names = load_file(single).keys()
    assert {
        "model.diffusion_model.pos_embed",
        "model.diffusion_model.joint_blocks.0.x_block.attn.qkv.weight",
        "model.diffusion_model.joint_blocks.0.x_block.attn2.ln_k.weight",
        "model.diffusion_model.joint_blocks.1.context_block.adaLN_modulation.1.weight",
        "text_encoders.clip_l.transformer.text_model.encoder.layers.0.mlp.fc1.weight",
        "text_encoders.clip_l.transformer.text_projection.weight",
        "text_encoders.clip_g.transformer.text_model.final_layer_norm.weight",
        "text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "first_stage_model.decoder.conv_in.weight",
    } <= names
    kind = identify(single)
    assert (kind.kind, kind.family, kind.model, kind.facts.get("text_encoders")) == (
        "checkpoint",
        "sd3",
        "sd35_medium",
        None,
    )
    assert {answer.program for answer in who_loads_file(single)[1]} == {"ComfyUI", "Forge", "diffusers"}


@torch.no_grad()
def test_a_single_file_is_the_model_of_its_folder(
    single: Path, tiny_sd3: Path, family: StableDiffusion3, tmp_path: Path
) -> None:
    back = tmp_path / "back"
    assert main(["convert", str(single), str(back)]) == 0
    for part in (p.name for p in SD3.parts):
        ours, theirs = (load_file(next((folder / part).glob("*.safetensors"))) for folder in (back, tiny_sd3))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@torch.no_grad()
def test_encoders_of_a_file_that_lacks_them_are_left_out(single: Path, tmp_path: Path) -> None:
    """A file with both CLIPs, whose CLIP-L has no projection: it is the identity."""
    tensors, metadata = read_safetensors(single)
    kept = {
        n: t
        for n, t in tensors.items()
        if ".t5xxl." not in n and not n.endswith("clip_l.transformer.text_projection.weight")
    }
    save_file(kept, tmp_path / "clips.safetensors", metadata)
    assert identify(tmp_path / "clips.safetensors").sentence.endswith("without t5xxl.")
    family: StableDiffusion3 = load_tiny(tmp_path / "clips.safetensors", SD3.name)
    assert family.spec.names_of("text_encoder") == ENCODERS[:2]
    projection = family.modules["text_encoder"].text_projection.weight
    assert torch.equal(projection, torch.eye(len(projection)))
    family.predict(noise_of(family, batch=1, seed=0), TIMESTEPS, family.encode_prompts(["a disc"]))


def test_a_file_without_encoders_needs_files_of_them(
    single: Path, config: Config, tiny_sd3: Path, tmp_path: Path
) -> None:
    tensors, metadata = read_safetensors(single)
    bare = tmp_path / "bare.safetensors"
    save_file({n: t for n, t in tensors.items() if not n.startswith("text_encoders.")}, bare, metadata)
    alone = laid_over(config, {"model": {"base_model": str(bare)}})
    [error] = check(alone).errors
    assert "has no text encoders" in error.message
    clips = {n: {"file": str(tiny_sd3 / n / "model.safetensors")} for n in ENCODERS[:2]}
    with_files = laid_over(alone, {"parts": {**clips, "text_encoder_3": {"include": False}}})
    assert not check(with_files).errors
    assert run(with_files).finished.outcome == "finished"


@pytest.mark.parametrize("model", ["sd3_medium", "sd35_medium", "sd35_large"])
def test_the_layout_of_published_single_files_has_every_tensor(model: str) -> None:
    configs = shipped_configs(model)
    for part in SD3.parts:
        module = empty_part(load_factory(part.model_class), configs[part.name])
        names = file_state(part.model, lazy_state(dict(module.state_dict())))
        assert {slot.key for slot in layouts(model, configs)[part.name].slots} == names.keys()


# -- the transformer


@pytest.mark.parametrize(("name", "is_distilled"), [("stable-diffusion-3.5-large-turbo", True), ("sd3.5_large", False)])
def test_large_turbo_is_distilled(config: Config, name: str, is_distilled: bool) -> None:
    problems = check(laid_over(config, {"model": {"base_model": f"stabilityai/{name}"}})).problems
    assert any("seems to be a distilled model" in p.message for p in problems) is is_distilled


def test_the_queries_of_the_text_in_the_last_block_learn_nothing(family: StableDiffusion3) -> None:
    transformer = family.denoiser.requires_grad_(True)
    output = family.predict(noise_of(family, batch=1, seed=0), TIMESTEPS, family.encode_prompts(["a disc"]))
    output.square().mean().backward()
    idle = {n for n, p in transformer.named_parameters() if p.grad is None or not p.grad.any()}
    assert {name.rpartition(".")[0] for name in idle} == set(unread_queries(transformer.config))


def test_a_fine_tune_in_bfloat16_is_saved_with_what_was_not_trained(config: Config, tmp_path: Path) -> None:
    """The matrix of q, k and v of the text in the last block has trained rows, and rows as they were."""
    parts = {"transformer": {"dtype": "bfloat16"}, **FROZEN_TEXT}
    training = {"trains": "full", "low_precision_updates": "master", "precision": "bfloat16"}
    output = {"model_format": "single_file", "destination": str(tmp_path / "tuned.safetensors"), "dtype": "bfloat16"}
    saved = Path(run(laid_over(config, {"parts": parts, "training": training, "output": output})).finished.model_path)
    assert identify(saved).model == "sd35_medium"


# -- three text encoders and embeddings


def test_a_lora_of_all_text_encoders(config: Config, tiny_sd3: Path, tmp_path: Path) -> None:
    ran = run(laid_over(config, {"output": {"format": "kohya"}}))
    lora = Path(ran.finished.model_path)
    layers = {name.partition(".")[0] for name in read_safetensors(lora)[0]}
    assert {
        "lora_te1_text_model_encoder_layers_1_mlp_fc1",
        "lora_te2_text_model_encoder_layers_1_mlp_fc1",
        "lora_te3_encoder_block_2_layer_1_DenseReluDense_wo",
        "lora_unet_joint_blocks_0_x_block_attn_qkv",
        "lora_unet_joint_blocks_1_context_block_attn_qkv",
        "lora_unet_joint_blocks_0_x_block_mlp_fc1",
    } <= layers
    further = laid_over(
        config,
        {"adapter": {"start_from": str(lora)}, "output": {"destination": str(tmp_path / "further.safetensors")}},
    )
    assert not check(further).errors
    assert losses(run(further))[0] != losses(ran)[0]


def test_a_lora_of_the_clips_is_loaded_by_diffusers(config: Config, tiny_sd3: Path) -> None:
    parts = {"transformer": {"train": False}, "text_encoder_3": {"train": False}}
    lora = Path(run(laid_over(config, {"output": {"format": "diffusers"}, "parts": parts})).finished.model_path)
    family: StableDiffusion3 = load_tiny(tiny_sd3, SD3.name)
    pipe = sd3_pipeline(tiny_sd3, family)
    with torch.no_grad():
        before = family.encode_prompts(["a disc"])
        pipe.load_lora_weights(lora)
        after = [pipe._get_clip_prompt_embeds(["a disc"], device="cpu", clip_model_index=index) for index in (0, 1)]
    for name, (states, pooled) in zip(ENCODERS, after, strict=False):
        assert (states - before.rows[name]).abs().max() > 1e-3
        assert (pooled - before.rows[pooled_name(name)]).abs().max() > 1e-3


@pytest.mark.daily(1)
@pytest.mark.parametrize("is_output", [False, True])
def test_embeddings_of_all_encoders(config: Config, tmp_path: Path, is_output: bool) -> None:
    word = {"placeholder": "<zog>", "initial_text": "a disc", "is_output": is_output}
    changes: dict[str, Any] = {
        "training": {"trains": "embedding"},
        "embeddings": {"words": [word]},
        "concepts": [{"path": config.concepts[0].path, "text": {"prefix": "<zog>"}}],
        "output": {"destination": str(tmp_path / "zog.safetensors")},
    }
    trained = laid_over(config, changes)
    assert not check(trained).errors
    ran = run(trained)
    file = tmp_path / "zog.safetensors"
    assert {"clip_l", "clip_g", "t5xxl"} <= read_safetensors(file)[0].keys()
    assert identify(file).family == SD3.name
    again = laid_over(trained, {"embeddings": {"words": [{**word, "file": str(file)}]}})
    assert losses(run(again))[0] != losses(ran)[0]


# -- other programs' settings


@pytest.mark.parametrize("version", [3, 4, 9, 11])
def test_files_of_every_version_leave_out_the_same_encoder(version: int) -> None:
    loaded = decode(TINY.onetrainer["STABLE_DIFFUSION_3"].tree(__version=version))
    assert not [p for p in loaded.problems if p.severity != "info"]
    assert loaded.config.family.names_of("text_encoder") == ENCODERS[:2]
    assert loaded.config.part("text_encoder_3").dtype == "float8"
