"""HiDream I1 alone: its experts, the padding of wide images, the language model that is published apart, its files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from diffusers.models.transformers.transformer_hidream_image import MOEFeedForwardSwiGLU

from modules.config.codec import decode
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.hidream.model import HiDream, llama_reader
from modules.families.hidream.spec import HIDREAM
from modules.families.hidream.transformer import Gate, RoutedFeedForward
from modules.families.kinds.identify import identify
from modules.families.separate_parts import file_of_part
from modules.formats.safetensors_io import read_safetensors
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over, small_config
from tests.builders.hidream import TOKENS, transformer_of_diffusers
from tests.builders.pipelines import load_tiny, noise_of
from tests.builders.runs import losses, run
from trainer.__main__ import main
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate

TIMESTEPS = torch.tensor([300.0, 700.0])
LLAMA = "Llama-3.1-8B-Instruct"
FILE = "parts.text_encoder_4.file"


@pytest.fixture
def family(tiny_hidream: Path) -> HiDream:
    family: HiDream = load_tiny(tiny_hidream, HIDREAM.name, text_tokens=TOKENS)
    return family


@pytest.fixture
def config(tiny_hidream: Path, images: Path, tmp_path: Path) -> Config:
    changes: dict[str, Any] = {
        "model": {"family": {"text_tokens": TOKENS}},
        "training": {"epochs": 1, "learning_rate": 0.01},
        "output": {"dtype": "float32", "format": "diffusers"},
    }
    return laid_over(small_config(tmp_path, model=tiny_hidream, images=images), changes)


# -- experts


def feed_forward() -> MOEFeedForwardSwiGLU:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MOEFeedForwardSwiGLU(16, 32, num_routed_experts=4, num_activated_experts=2)


def test_routed_experts_have_the_output_and_the_gradients_of_diffusers_training() -> None:
    theirs, ours = feed_forward().train(), RoutedFeedForward(feed_forward())
    assert theirs.state_dict().keys() == ours.state_dict().keys()
    states = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))
    results = []
    for module in (ours, theirs):
        given = states.clone().requires_grad_()
        output = module(given)
        output.square().sum().backward()
        results.append((output, given.grad, {n: p.grad for n, p in module.named_parameters()}))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def only_two_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all tokens choose the first two experts."""
    forward = Gate.forward

    def chosen(self: Gate, tokens_NC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights_NK, chosen_NK = forward(self, tokens_NC)
        return weights_NK, torch.arange(2, device=chosen_NK.device).expand_as(chosen_NK)

    monkeypatch.setattr(Gate, "forward", chosen)


def test_an_expert_that_no_token_chose_has_a_gradient_of_zeros(
    family: HiDream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no part is ever left without gradients."""
    only_two_experts(monkeypatch)
    transformer = family.denoiser.requires_grad_(True)
    output = family.predict(noise_of(family, batch=2, seed=0), TIMESTEPS, family.encode_prompts(["a disc", "b"]))
    output.square().mean().backward()
    gradients = {name: p.grad for name, p in transformer.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())
    idle = {name for name, gradient in gradients.items() if gradient is not None and not gradient.any()}
    assert idle == {name for name in gradients if ".experts.2." in name or ".experts.3." in name}


@pytest.mark.parametrize("dtype", ["float32", pytest.param("int8", marks=pytest.mark.full), "nfloat4", "float8"])
def test_a_run_whose_tokens_choose_two_experts_alone_trains(
    config: Config, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """With recomputed blocks and quantized weights, whose kernels get no rows; the other experts stay as they are."""
    only_two_experts(monkeypatch)
    parts = {"transformer": {"dtype": dtype, "checkpointing": "block"}}
    ran = run(laid_over(config, {"parts": parts, "training": {"clip_grad_norm": 1.0}}))
    assert ran.finished.outcome == "finished"
    assert all(0 < loss < 100 for loss in losses(ran))
    ups = {n: t for n, t in read_safetensors(Path(ran.finished.model_path))[0].items() if ".lora_B." in n}
    idle = {name for name in ups if ".experts.2." in name or ".experts.3." in name}
    assert len(idle) == 2 * 3 * 4
    assert all(tensor.any() == (name not in idle) for name, tensor in ups.items())


def test_gates_are_neither_adapted_nor_quantized(config: Config) -> None:
    parts = {"transformer": {"dtype": "int8"}}
    ran = run(laid_over(config, {"parts": parts, "adapter": {"layers": "all"}}))
    assert not any(".gate." in name for name in read_safetensors(Path(ran.finished.model_path))[0])


# -- images


@torch.no_grad()
@pytest.mark.parametrize("shape", [(8, 8), (4, 4), (6, 10), (10, 6)])
def test_images_of_all_shapes_are_those_of_diffusers(family: HiDream, shape: tuple[int, int]) -> None:
    """Of 16 tokens, of 4, and of 15, to which one of padding is added: it changes what the others attend to."""
    transformer = transformer_of_diffusers(family.denoiser)
    text = family.encode_prompts(["a disc", "b"])
    noisy = torch.randn(2, 16, *shape, generator=torch.Generator().manual_seed(1))
    theirs = transformer(noisy, TIMESTEPS, **text.inputs(torch.float32), return_dict=False)[0]
    torch.testing.assert_close(family.predict(noisy, TIMESTEPS, text), -theirs, rtol=1e-5, atol=1e-5)
    family.denoiser.max_seq = 15
    unpadded = family.predict(noisy, TIMESTEPS, text)
    assert torch.allclose(unpadded, -theirs, rtol=1e-5, atol=1e-5) is (shape[0] == shape[1])


@torch.no_grad()
def test_wide_images_of_other_sizes_than_the_pipelines_have_no_padding(family: HiDream) -> None:
    """diffusers' class fills a quarter of a small one with padding, and refuses a larger one."""
    text = family.encode_prompts(["a disc"])
    for shape in ((4, 12), (12, 10)):
        noisy = torch.randn(1, 16, *shape, generator=torch.Generator().manual_seed(1))
        before = family.predict(noisy, TIMESTEPS[:1], text)
        assert before.shape == noisy.shape
        family.denoiser.max_seq = 1
        assert torch.equal(family.predict(noisy, TIMESTEPS[:1], text), before)


# -- Llama, which is published apart


def published(tiny: Path, folder: Path, *, beside: str = LLAMA) -> Path:
    """Copy the model as it is published, without Llama, whose folder is next to it under the name `beside`."""
    model, llama = folder / "HiDream-I1-Full", folder / (beside or "elsewhere")
    shutil.copytree(tiny, model, ignore=shutil.ignore_patterns("text_encoder_4", "tokenizer_4"))
    index = json.loads((model / "model_index.json").read_text())
    (model / "model_index.json").write_text(json.dumps({k: v for k, v in index.items() if not k.endswith("_4")}))
    shutil.copytree(tiny / "text_encoder_4", llama)
    shutil.copytree(tiny / "tokenizer_4", llama, dirs_exist_ok=True)
    return model


def as_shards(llama: Path) -> None:
    """Name Llama's weights as those of several files."""
    names = read_safetensors(llama / "model.safetensors")[0]
    (llama / "model.safetensors").rename(llama / "model-00001-of-00001.safetensors")
    places = dict.fromkeys(names, "model-00001-of-00001.safetensors")
    (llama / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


@pytest.mark.parametrize("change", [lambda llama: None, as_shards])
def test_llama_is_read_from_a_folder_next_to_the_model(
    config: Config, tiny_hidream: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    model = published(tiny_hidream, tmp_path / "models")
    change(tmp_path / "models" / LLAMA)
    assert identify(model).without == {"text_encoder_4"}
    assert "missing" not in identify(model).facts
    here = laid_over(config, {"model": {"base_model": str(model)}})
    assert not check(here).errors
    assert losses(run(here)) == pytest.approx(losses(run(config)), rel=1e-5)  # its weights are aligned otherwise
    estimates = [memory_estimate(each, {Size(64, 64): 4}) for each in (here, config)]
    assert len({estimate.peak.total_bytes for estimate in estimates if estimate is not None}) == 1


@pytest.mark.parametrize("name", ["", "model.safetensors"])
def test_llama_is_read_from_a_folder_or_a_file_that_is_set(
    config: Config, family: HiDream, tiny_hidream: Path, tmp_path: Path, name: str
) -> None:
    model = published(tiny_hidream, tmp_path / "models", beside="")
    [error] = [e for e in check(laid_over(config, {"model": {"base_model": str(model)}})).errors if e.path == FILE]
    assert "has no Text encoder 4 (Llama 3.1 8B), which is published apart from the model" in error.message
    assert "meta-llama/Llama-3.1-8B-Instruct" in error.advice
    with pytest.raises(DarkroomError, match=r"has no Text encoder 4 \(Llama 3.1 8B\)"):
        load_tiny(model, HIDREAM.name)
    given = str(tmp_path / "models" / "elsewhere" / name)
    file = file_of_part(next(p for p in HIDREAM.parts if p.published_in), given, str(model))
    read: HiDream = load_tiny(model, HIDREAM.name, text_tokens=TOKENS, part_files={"text_encoder_4": file})
    texts = [each.encode_prompts(["a disc"]).tensors() for each in (read, family)]
    torch.testing.assert_close(texts[0], texts[1])


def test_another_language_model_is_refused(family: HiDream) -> None:
    """By the weights that a check before a run expects, and when it is loaded."""
    encoder = family.modules["text_encoder_4"]
    for options, message in (({"num_read": 4, "width": 24}, "3 layers"), ({"num_read": 3, "width": 32}, "width 24;")):
        with pytest.raises(DarkroomError, match=message):
            llama_reader(encoder, family.llama.tokenizer, TOKENS, **options)


def test_a_file_of_llama_without_a_tokenizer_is_refused(config: Config, tiny_hidream: Path, tmp_path: Path) -> None:
    model = published(tiny_hidream, tmp_path / "models")
    (tmp_path / "models" / LLAMA / "tokenizer.json").unlink()
    [error] = check(laid_over(config, {"model": {"base_model": str(model)}})).errors
    assert error.path == FILE
    assert error.message.startswith("There is no tokenizer.json next to ")


def test_a_gguf_file_of_llama_is_refused(config: Config, tmp_path: Path) -> None:
    """llama.cpp stores the queries and keys of this architecture in another order."""
    writer = gguf.GGUFWriter(file := tmp_path / "llama.gguf", "llama")
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((32, 32), dtype=np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    [error] = check(laid_over(config, {"parts": {"text_encoder_4": {"file": str(file)}}})).errors
    assert (error.path, error.advice) == (FILE, "Choose a .safetensors file.")


@pytest.mark.full
def test_a_fine_tune_is_saved_without_the_llama_of_another_folder(
    config: Config, tiny_hidream: Path, tmp_path: Path
) -> None:
    model = published(tiny_hidream, tmp_path / "models")
    output = {"model_format": "diffusers", "destination": str(tmp_path / "models" / "tuned")}
    tuned = laid_over(config, {"model": {"base_model": str(model)}, "training": {"trains": "full"}, "output": output})
    saved = Path(run(tuned).finished.model_path)
    assert not (saved / "text_encoder_4").exists()
    assert json.loads((saved / "model_index.json").read_text())["text_encoder_4"] == [None, None]
    assert not check(laid_over(config, {"model": {"base_model": str(saved)}})).errors
    assert main(["convert", str(saved), str(tmp_path / "tuned.safetensors")]) == 0


# -- other facts


@pytest.mark.parametrize(("name", "is_distilled"), [("Dev", True), ("Fast", True), ("Full", False)])
def test_dev_and_fast_are_distilled(config: Config, name: str, is_distilled: bool) -> None:
    problems = check(laid_over(config, {"model": {"base_model": f"HiDream-ai/HiDream-I1-{name}"}})).problems
    assert any("seems to be a distilled model" in p.message for p in problems) is is_distilled
    assert FILE in {p.path for p in problems if p.severity == "warning"}, "none of these repositories has Llama"


@pytest.mark.parametrize(("scheduler", "shift"), [({"flow_shift": 3.0}, 3.0), ({"shift": 6.0}, 6.0), ({}, 3.0)])
def test_the_shift_is_the_schedulers(scheduler: dict[str, float], shift: float) -> None:
    """Full's UniPC, Dev's LCM, and none stated."""
    flow = HIDREAM.process.flow
    assert flow is not None
    assert flow.with_scheduler(scheduler).shift_at(1024, 1024) == shift


@pytest.mark.parametrize(("dtype", "least", "most"), [("bfloat16", 34.0, 48.0), ("int8", 17.0, 27.0)])
def test_the_published_model_needs_the_estimated_memory_at_1024_px(dtype: str, least: float, most: float) -> None:
    """Its weights alone are 34.2 GB in bfloat16; nothing is measured yet."""
    parts = {name: {"dtype": "nfloat4"} for name in HIDREAM.names_of("text_encoder")}
    parts |= {"transformer": {"dtype": dtype, "checkpointing": "block"}}
    tree = {"model": {"family": "hidream", "base_model": "HiDream-ai/HiDream-I1-Full"}, "parts": parts}
    tree |= {"training": {"precision": "bfloat16"}, "data": {"resolution_px": [1024]}}
    estimate = memory_estimate(decode({"darkroom_version": 7, **tree}).config, {Size(1024, 1024): 10})
    assert estimate is not None
    assert least < estimate.peak.total_bytes / 1e9 < most
