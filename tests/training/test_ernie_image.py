"""ERNIE-Image alone: its text, its latents, Turbo, its files, its memory; the rest is in tests/training/flow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import ErnieImagePipeline
from safetensors.torch import load_file, save_file

from modules.config.codec import decode
from modules.config.imports.ai_toolkit import tree_of_ai_toolkit
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.ernie_image.model import ErnieImage
from modules.families.ernie_image.spec import ERNIE_IMAGE, MAX_TOKENS
from modules.families.kinds.identify import identify, who_loads_file
from modules.families.parts.single_file.checkpoint import empty_part, load_part_file
from modules.families.parts.single_file.models import shipped_configs
from modules.system.factories import load_factory
from tests.builders.configs import config_fixture, laid_over
from tests.builders.ernie_image import TINY, ernie_image_pipeline, write_ernie_image_folder
from tests.builders.pipelines import load_tiny, noise_of
from tests.builders.runs import run
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate

TEXT_ENCODER = next(part for part in ERNIE_IMAGE.parts if part.role == "text_encoder")


config = config_fixture("tiny_ernie_image", {"training": {"epochs": 1}})


@pytest.fixture(scope="module")
def family(tiny_ernie_image: Path) -> ErnieImage:
    family: ErnieImage = load_tiny(tiny_ernie_image, ERNIE_IMAGE.name)
    return family


# -- text


@torch.no_grad()
def test_prompts_of_two_lengths_predict_as_each_alone(family: ErnieImage) -> None:
    """The positions of an image begin behind its own text, and the padding of the shorter one is masked."""
    prompts, noisy = ["a disc", "a disc and a very long square"], noise_of(family, batch=2, seed=0)
    times = torch.tensor([250.0, 700.0])
    both = family.predict(noisy, times, family.encode_prompts(prompts))
    for index, prompt in enumerate(prompts):
        alone = family.predict(noisy[index : index + 1], times[index : index + 1], family.encode_prompts([prompt]))
        torch.testing.assert_close(both[index : index + 1], alone, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("has_start", [True, False])
def test_special_tokens_are_those_of_the_tokenizer(has_start: bool, tmp_path: Path) -> None:
    """An empty prompt is the start token, whether the tokenizer adds one or not; a long one is read up to the limit."""
    folder = write_ernie_image_folder(tmp_path / "model", has_start=has_start)
    family: ErnieImage = load_tiny(folder, ERNIE_IMAGE.name)
    pipe = ernie_image_pipeline(folder, family)
    start, long = family.reader.tokenizer.id_of("<s>"), "a disc " * 300
    for prompt, length in (("", 1), ("a disc", 6 + has_start), (long, MAX_TOKENS)):
        assert (family.reader.ids(prompt)[0] == start) == (has_start or not prompt)
        ours = family.encode_prompts([prompt])
        assert ours.lengths == (length,)
        torch.testing.assert_close(ours.states_BLD, TINY.text(pipe, prompt)["states"], rtol=1e-4, atol=1e-5)


def test_the_vision_tower_is_not_loaded(family: ErnieImage, tiny_ernie_image: Path) -> None:
    stored = load_file(tiny_ernie_image / "text_encoder" / "model.safetensors")
    assert any(name.startswith("vision_tower.") for name in stored)
    read = set(family.modules["text_encoder"].state_dict())
    others = ("vision_tower.", "multi_modal_projector.")
    assert len(read) == len([name for name in stored if not name.startswith(others)])
    assert not any(name.startswith(others) for name in read)


def test_the_published_text_encoder_is_that_of_ministral_3_without_the_vision_tower() -> None:
    config = shipped_configs("ernie_image")[TEXT_ENCODER.name]
    weights = empty_part(load_factory(TEXT_ENCODER.model_class), config).parameters()
    assert sum(tensor.numel() for tensor in weights) == 3_429_006_336


# -- latents


def test_latents_are_normalised_as_in_training_and_not_as_in_the_config(
    family: ErnieImage, tiny_ernie_image: Path
) -> None:
    """diffusers' pipeline adds 1e-5 to the variances, too, whatever the published config says."""
    config = json.loads((tiny_ernie_image / "vae" / "config.json").read_text())
    assert config["batch_norm_eps"] == 1e-4
    latents = family.encode_images(torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1)
    variances = family.vae.bn.running_var
    assert latents.shape == (1, *ERNIE_IMAGE.latents.shape(64, 64))
    assert family.vae.config.batch_norm_eps == 1e-5
    expected = repr(tuple((variances.double() + 1e-5).sqrt().tolist()))
    assert expected in family.image_identity()


# -- Turbo


@pytest.mark.parametrize(("name", "is_distilled"), [("ERNIE-Image", False), ("ERNIE-Image-Turbo", True)])
def test_turbo_is_recognized_by_its_name(config: Config, name: str, is_distilled: bool) -> None:
    problems = check(laid_over(config, {"model": {"base_model": f"baidu/{name}"}})).problems
    assert any("seems to be a distilled model" in p.message for p in problems) is is_distilled


def test_attention_that_takes_no_mask_is_refused(config: Config) -> None:
    [error] = check(laid_over(config, {"training": {"attention": "sdpa_flash"}})).errors
    assert "cannot leave out the padding of shorter prompts, as ERNIE-Image needs" in error.message


# -- files


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_a_file_of_the_transformer_is_read(prefix: str, family: ErnieImage, tmp_path: Path) -> None:
    state, file = family.denoiser.state_dict(), tmp_path / "ernie-image.safetensors"
    save_file({f"{prefix}{name}": tensor for name, tensor in state.items()}, file)
    assert (identify(file).kind, identify(file).family) == ("part", ERNIE_IMAGE.name)
    read = load_part_file(file, ERNIE_IMAGE, ERNIE_IMAGE.denoiser, dict(family.denoiser.config), torch.float32)
    assert all(torch.equal(tensor, state[name]) for name, tensor in read.state_dict().items())


def test_the_text_encoder_is_read_from_comfyuis_file(family: ErnieImage, tmp_path: Path) -> None:
    module, file = family.modules["text_encoder"], tmp_path / "ministral-3-3b.safetensors"
    save_file({f"model.{name}": tensor.clone() for name, tensor in module.state_dict().items()}, file)
    read = load_part_file(file, ERNIE_IMAGE, TEXT_ENCODER, module.config.to_dict(), torch.float32)
    assert all(torch.equal(tensor, read.state_dict()[name]) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize(
    ("form", "start", "loads"), [("comfyui", "diffusion_model.", "none"), ("diffusers", "transformer.", "all")]
)
def test_diffusers_loads_its_lora_in_its_own_form_alone(form: str, start: str, loads: str, config: Config) -> None:
    """For a file with alphas, as ComfyUI's form has, its loader raises an error."""
    file = Path(run(laid_over(config, {"output": {"format": form}})).finished.model_path)
    assert all(name.startswith(start) for name in load_file(file))
    assert {answer.program: answer.loads for answer in who_loads_file(file)[1]}["diffusers"] == loads


@pytest.mark.full
def test_a_saved_folder_is_loaded_by_the_pipeline_without_a_prompt_enhancer(config: Config, tmp_path: Path) -> None:
    output = {"model_format": "diffusers", "destination": str(tmp_path / "tuned"), "dtype": "float32"}
    saved = Path(run(laid_over(config, {"training": {"trains": "full"}, "output": output})).finished.model_path)
    assert json.loads((saved / "vae" / "config.json").read_text())["batch_norm_eps"] == 1e-5
    pipe = ErnieImagePipeline.from_pretrained(saved, local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    assert pipe.pe is None
    family: ErnieImage = load_tiny(saved, ERNIE_IMAGE.name)
    states = family.encode_prompts(["a disc"]).states_BLD
    torch.testing.assert_close(TINY.text(pipe, "a disc")["states"], states, rtol=1e-4, atol=1e-5)


# -- memory, configs of other programs


@pytest.mark.parametrize(("dtype", "least", "most"), [("bfloat16", 18.0, 21.5), ("int8", 10.5, 13.0)])
def test_the_published_model_needs_this_memory_at_1024_px(dtype: str, least: float, most: float) -> None:
    parts = {"transformer": {"dtype": dtype, "checkpointing": "block"}, "text_encoder": {"dtype": dtype}}
    tree = {"model": {"family": "ernie_image", "base_model": "baidu/ERNIE-Image"}, "parts": parts}
    tree |= {"training": {"precision": "bfloat16"}, "data": {"resolution_px": [1024]}}
    estimate = memory_estimate(decode({"darkroom_version": 7, **tree}).config, {Size(1024, 1024): 10})
    assert estimate is not None
    assert least < estimate.peak.total_bytes / 1e9 < most


def test_a_config_of_ai_toolkit_is_imported() -> None:
    model = {"name_or_path": "baidu/ERNIE-Image", "arch": "ernie_image", "quantize": True, "qtype": "qfloat8"}
    process = {
        "type": "diffusion_trainer",
        "model": model,
        "network": {"type": "lora", "linear": 32, "linear_alpha": 32},
        "train": {"noise_scheduler": "flowmatch", "timestep_type": "sigmoid", "lr": 1e-4},
    }
    notes: list[Any] = []
    config = decode(
        tree_of_ai_toolkit({"job": "extension", "config": {"name": "x", "process": [process]}}, notes)
    ).config
    assert (config.family.name, config.model.base_model) == (ERNIE_IMAGE.name, "baidu/ERNIE-Image")
    assert (config.adapter.rank, config.part("transformer").dtype) == (32, "float8")
