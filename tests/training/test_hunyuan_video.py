"""HunyuanVideo alone: guidance, padding, the VAE on one frame, its files, videos, OneTrainer's files."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    AutoencoderKLHunyuanVideo,
    HunyuanImageTransformer2DModel,
    HunyuanVideo15Transformer3DModel,
)
from diffusers.loaders.single_file_utils import convert_hunyuan_video_transformer_to_diffusers
from safetensors.torch import save_file

from modules.config.codec import decode
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.listing import NOT_READ
from modules.families.hunyuan_video.files import TRANSFORMER_FILE
from modules.families.hunyuan_video.model import DROPPED, HunyuanVideo, prompt_reader
from modules.families.hunyuan_video.spec import HUNYUAN_VIDEO
from modules.families.kinds.identify import identify
from modules.families.parts.circular_padding import pad_circularly
from modules.families.parts.single_file.moves import to_original
from modules.families.parts.vae import encode_mean
from modules.families.registry import files_of
from modules.formats.lazy_tensors import lazy_state
from modules.formats.safetensors_io import read_safetensors
from modules.sampling.prediction import with_guidance
from modules.system.errors import DarkroomError
from tests.builders.configs import config_fixture, laid_over
from tests.builders.hunyuan_video import hunyuan_video_pipeline, tiny_transformer, write_hunyuan_video_folder
from tests.builders.models import remove_weights
from tests.builders.pipelines import denoiser_of, family_fixture, load_tiny, noise_of
from tests.builders.runs import run
from tests.unit.test_kinds import write_header
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate

BASE: dict[str, Any] = {
    "data": {"latent_cache": True, "text_cache": True},
    "training": {"epochs": 1, "batch_size": 2, "learning_rate": 0.01, "noise": {"distribution": "logit_normal"}},
    "output": {"dtype": "float32", "format": "comfyui"},
}
TIMESTEPS = torch.tensor([300.0, 700.0])
config = config_fixture("tiny_hunyuan_video", BASE)
VIDEO = NOT_READ[".mp4"]

family = family_fixture("tiny_hunyuan_video", HUNYUAN_VIDEO.name)


# -- the prediction


@torch.no_grad()
def test_training_reads_the_guidance_of_the_settings_and_samples_their_own(
    tiny_hunyuan_video: Path, family: HunyuanVideo
) -> None:
    text, noisy = family.encode_prompts(["a disc", "b"]), noise_of(family, batch=2, seed=1)
    trained = family.predict(noisy, TIMESTEPS, text)
    assert torch.equal(trained, family.predict(noisy, TIMESTEPS, with_guidance(family, text, 1.0)))
    guided = family.predict(noisy, TIMESTEPS, with_guidance(family, text, 6.0))
    assert not torch.allclose(trained, guided)
    other: HunyuanVideo = load_tiny(tiny_hunyuan_video, HUNYUAN_VIDEO.name, guidance=6.0)
    assert torch.equal(other.predict(noisy, TIMESTEPS, text), guided)


@torch.no_grad()
def test_the_prediction_is_the_one_for_the_padded_prompt_in_diffusers(
    tiny_hunyuan_video: Path, family: HunyuanVideo
) -> None:
    """The pipeline pads to 256 tokens, with states that are not zero; no result depends on them. A wide image."""
    pipe = hunyuan_video_pipeline(tiny_hunyuan_video, family)
    prompts = ["a disc", "two squares in front of a wall"]
    states, pooled, mask = pipe.encode_prompt(prompts, device="cpu")
    assert not mask.all()
    assert states[~mask.bool()].any()
    noisy = torch.randn(2, 16, 6, 10, generator=torch.Generator().manual_seed(1))
    theirs = family.denoiser(
        hidden_states=noisy.unsqueeze(2),
        timestep=TIMESTEPS,
        encoder_hidden_states=states,
        encoder_attention_mask=mask.float(),
        pooled_projections=pooled,
        guidance=torch.tensor([6000.0, 6000.0]),
    ).sample
    text = with_guidance(family, family.encode_prompts(prompts), 6.0)
    ours = family.predict(noisy, TIMESTEPS, text)
    torch.testing.assert_close(ours, theirs.squeeze(2), rtol=1e-5, atol=1e-5)


def test_every_weight_of_the_transformer_gets_a_gradient(family: HunyuanVideo) -> None:
    transformer = denoiser_of(family).requires_grad_(True)
    text = family.encode_prompts(["a disc", "two squares"])
    family.predict(noise_of(family, batch=2, seed=1), TIMESTEPS, text).square().mean().backward()
    assert [n for n, p in transformer.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_the_template_has_95_tokens_before_a_prompt(family: HunyuanVideo) -> None:
    reader = prompt_reader(family.modules["text_encoder"], family.reader.tokenizer)
    before = family.reader.tokenizer.ids(reader.template.before)
    assert len(before) == DROPPED == 95
    assert reader.ids("a disc")[:DROPPED] == before
    assert len(reader.ids("a " * 600)) == DROPPED + 256


def test_dropped_captions_are_dropped_for_each_encoder(family: HunyuanVideo) -> None:
    with torch.no_grad():
        text, empty = family.encode_prompts(["a disc", "b"]), family.encode_prompts([""])
    dropped = family.with_empty_prompts(text, [{0}, {1}], empty)
    assert torch.equal(dropped.split()[0], empty.split()[0])
    assert torch.equal(dropped.split()[1], text.split()[1])
    assert torch.equal(dropped.pooled_BE, torch.cat([text.pooled_BE[:1], empty.pooled_BE]))


# -- the VAE


def vae_of_diffusers(family: HunyuanVideo) -> AutoencoderKLHunyuanVideo:
    vae = AutoencoderKLHunyuanVideo.from_config(family.vae.config)
    vae.load_state_dict(family.vae.state_dict())
    return vae.eval()


@torch.no_grad()
def test_an_image_is_a_video_of_one_frame(family: HunyuanVideo) -> None:
    images = torch.rand(2, 3, 48, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1
    theirs = vae_of_diffusers(family)
    latents = family.encode_images(images)
    wanted = theirs.encode(images.unsqueeze(2)).latent_dist.mode() * theirs.config.scaling_factor
    torch.testing.assert_close(latents, wanted.squeeze(2), rtol=1e-5, atol=1e-5)
    decoded = theirs.decode(wanted / theirs.config.scaling_factor).sample.squeeze(2)
    torch.testing.assert_close(family.decode(latents), decoded, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_vae_pads_circularly(family: HunyuanVideo) -> None:
    """An image that is moved by whole latents, around its edges, has the latents moved."""
    pad_circularly(family.vae)
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1
    latents, moved = (encode_mean(family.vae, i, factor=8) for i in (images, images.roll((16, 24), (2, 3))))
    torch.testing.assert_close(moved, latents.roll((2, 3), (2, 3)), rtol=1e-4, atol=1e-4)
    decoded, shifted = (family.decode(z) for z in (latents, moved))
    torch.testing.assert_close(shifted, decoded.roll((16, 24), (2, 3)), rtol=1e-3, atol=1e-3)


# -- files


def native_state(family: HunyuanVideo) -> dict[str, torch.Tensor]:
    """The transformer as ComfyUI's files have it."""
    denoiser = denoiser_of(family)
    slots = TRANSFORMER_FILE.layout(family.denoiser.config).slots
    return {n: t.make().contiguous() for n, t in to_original(slots, lazy_state(denoiser.state_dict())).items()}


def test_the_layout_is_that_of_diffusers_converter(family: HunyuanVideo) -> None:
    """All but the first matrix of single blocks, which it divides as at the published size."""
    native = native_state(family)
    theirs = convert_hunyuan_video_transformer_to_diffusers({n: t for n, t in native.items() if ".linear1." not in n})
    state = denoiser_of(family).state_dict()
    rest = {n for n in state if n.startswith("single_") and (".attn.to_" in n or ".proj_mlp." in n)}
    assert theirs.keys() == state.keys() - rest
    assert all(torch.equal(tensor, state[name]) for name, tensor in theirs.items())


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_a_file_of_the_transformer_is_read(
    tiny_hunyuan_video: Path, family: HunyuanVideo, config: Config, tmp_path: Path, prefix: str
) -> None:
    file = tmp_path / "transformer.safetensors"
    save_file({f"{prefix}{n}": t for n, t in native_state(family).items()}, file)
    kind = identify(file)
    assert (kind.kind, kind.sentence) == ("part", "A HunyuanVideo transformer alone, float32.")
    other = shutil.copytree(tiny_hunyuan_video, tmp_path / "model")
    tree = {"model": {"base_model": str(other)}, "parts": {"transformer": {"file": str(file)}}}
    assert not check(laid_over(config, tree)).errors


def test_a_folder_of_diffusers_transformer_is_not_taken_for_flux(family: HunyuanVideo, tmp_path: Path) -> None:
    """Both have single blocks of the same names."""
    save_file(denoiser_of(family).state_dict(), file := tmp_path / "transformer.safetensors")
    assert identify(file).family == "hunyuan_video"


@pytest.mark.parametrize(
    ("transformer", "label"),
    [
        (partial(HunyuanVideo15Transformer3DModel, text_embed_2_dim=8), "HunyuanVideo 1.5 model"),
        (HunyuanImageTransformer2DModel, "refiner of HunyuanImage 2.1"),
    ],
)
def test_later_models_of_the_series_are_not_taken_for_it(transformer: Any, label: str, tmp_path: Path) -> None:
    """They have blocks and a refiner of the same names."""
    with torch.device("meta"):
        shapes = {n: tuple(t.shape) for n, t in transformer(num_layers=1).state_dict().items()}
    kind = identify(write_header(tmp_path / "transformer.safetensors", shapes))
    assert kind.sentence == f"A {label} in diffusers' layout, which is not supported."
    native = {"double_blocks.0.img_attn_q.weight", "txt_in.individual_token_refiner.blocks.0.norm1.weight"}
    native |= {"cond_type_embedding.weight"} if "1.5" in label else set()
    kind = identify(write_header(tmp_path / "native.safetensors", dict.fromkeys(native, (8, 8))))
    assert kind.sentence == f"A {label}, which is not supported."


@pytest.mark.parametrize("pipeline", ["HunyuanVideo15Pipeline", "HunyuanImageRefinerPipeline", "HunyuanSkyreels"])
def test_a_folder_of_another_model_of_the_series_is_refused_by_name(
    tiny_hunyuan_video: Path, config: Config, pipeline: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_hunyuan_video, tmp_path / "model")
    index = folder / "model_index.json"
    index.write_text(json.dumps({**json.loads(index.read_text(encoding="utf-8")), "_class_name": pipeline}))
    sentence = f"A diffusers folder of a {pipeline}, which is not supported."
    assert identify(folder).sentence == sentence
    [error] = check(laid_over(config, {"model": {"base_model": str(folder)}})).errors
    assert sentence in error.message
    with pytest.raises(DarkroomError, match=sentence):
        load_tiny(folder, HUNYUAN_VIDEO.name)


def test_a_model_that_begins_with_an_image_is_refused(tmp_path: Path, one_thread: None) -> None:
    folder = write_hunyuan_video_folder(tmp_path / "i2v", image_condition_type="token_replace")
    remove_weights(folder)
    with pytest.raises(DarkroomError, match="makes videos from an image"):  # by its config alone
        load_tiny(folder, HUNYUAN_VIDEO.name)


def test_a_lora_in_comfyuis_form_has_the_published_names(config: Config) -> None:
    """`tests/parity/test_fused_layers_in_diffusers.py` has how diffusers divides their matrices."""
    saved = Path(run(laid_over(config, {"adapter": {"layers": "all"}})).finished.model_path)
    tensors = read_safetensors(saved)[0]
    layers = {n.removeprefix("diffusion_model.").partition(".lora_")[0] for n in tensors if not n.endswith(".alpha")}
    slots = TRANSFORMER_FILE.layout(tiny_transformer().config).slots
    assert layers < {slot.original.removesuffix(".weight") for slot in slots}
    assert {"double_blocks.1.txt_attn_qkv", "single_blocks.0.linear1", "txt_in.input_embedder"} <= layers


def test_the_layers_are_all_linear_layers_and_norms_of_the_transformer() -> None:
    transformer = tiny_transformer()
    layers = files_of("hunyuan_video").models[0].adapter_targets({"transformer": transformer.config})
    kinds = (torch.nn.Linear, torch.nn.LayerNorm)
    modules = {n: m.weight for n, m in transformer.named_modules() if isinstance(m, kinds) and m.weight is not None}
    assert {target.path: target.weight for target in layers.all} == {n: (*w.shape,) for n, w in modules.items()}


# -- data and configs


def test_videos_in_a_concept_are_skipped_by_name(config: Config, images: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(images, tmp_path / "concept")
    for name in ("clip.mp4", "other.MKV"):
        (folder / name).write_bytes(b"video")
    report = check(laid_over(config, {"concepts": [{"path": str(folder)}]}))
    assert not report.errors
    [problem] = [p for p in report.problems if VIDEO in p.message]
    assert (problem.severity, problem.path) == ("warning", "concepts")
    assert problem.message.startswith(f"2 files are skipped (clip.mp4: {VIDEO}; other.MKV: {VIDEO}")


def test_a_concept_of_videos_alone_is_an_error(config: Config, tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "clip.mp4").write_bytes(b"video")
    errors = check(laid_over(config, {"concepts": [{"path": str(tmp_path / "videos")}]})).errors
    assert any("contains no readable image" in e.message and VIDEO in e.message for e in errors)


@pytest.mark.parametrize(("frames", "is_noted"), [("25", True), ("1", False), (None, False)])
def test_frames_of_onetrainer_are_noted(frames: str | None, is_noted: bool) -> None:
    tree = {"training_method": "LORA", "model_type": "HUNYUAN_VIDEO", **({"frames": frames} if frames else {})}
    loaded = decode(tree)
    assert any("Videos are not supported" in p.message for p in loaded.problems) is is_noted
    assert loaded.config.model.family.name == "hunyuan_video"
    assert not [p for p in loaded.problems if p.severity != "info"]


def test_caption_dropout_of_onetrainer_is_that_of_each_encoder() -> None:
    tree = {"model_type": "HUNYUAN_VIDEO", "text_encoder": {"dropout_probability": 0.1}}
    data = decode(tree).config.data
    assert (data.caption_dropout, data.caption_dropout_2) == (0.1, 0.0)


@pytest.mark.parametrize(("name", "is_distilled"), [("FastVideo/FastHunyuan", True), ("tencent/HunyuanVideo", False)])
def test_fast_hunyuan_is_distilled(config: Config, name: str, is_distilled: bool) -> None:
    problems = check(laid_over(config, {"model": {"base_model": name}})).problems
    assert any("seems to be a distilled model" in p.message for p in problems) is is_distilled


def test_the_shift_is_7_or_the_schedulers() -> None:
    flow = HUNYUAN_VIDEO.process.flow
    assert flow is not None
    assert [flow.with_scheduler(s).shift_at(1024, 1024) for s in ({}, {"shift": 17.0})] == [7.0, 17.0]


@pytest.mark.parametrize(("dtype", "least", "most"), [("bfloat16", 26.0, 32.0), ("int8", 13.0, 19.0)])
def test_the_published_model_needs_the_estimated_memory_at_1024_px(dtype: str, least: float, most: float) -> None:
    """Its weights alone are 25.6 GB in bfloat16; nothing is measured yet."""
    parts = {name: {"dtype": "nfloat4"} for name in HUNYUAN_VIDEO.names_of("text_encoder")}
    parts |= {"transformer": {"dtype": dtype, "checkpointing": "block"}}
    tree = {"model": {"family": "hunyuan_video", "base_model": "hunyuanvideo-community/HunyuanVideo"}, "parts": parts}
    tree |= {"training": {"precision": "bfloat16"}, "data": {"resolution_px": [1024]}}
    estimate = memory_estimate(decode({"darkroom_version": 7, **tree}).config, {Size(1024, 1024): 10})
    assert estimate is not None
    assert least < estimate.peak.total_bytes / 1e9 < most
