"""Files with the denoiser alone: read in place of the base model's, and written as a fine-tune, in every layout.

Z-Image stands for the families whose single files have no other part; `test_gguf.py` has those with a UNet.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.gguf_file import write_gguf
from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.families.kinds.identify import identify
from modules.families.parts.single_file.denoiser_file import packed_layers
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.families.parts.single_file.moves import to_original
from modules.families.z_image.files import TRANSFORMER_FILE
from modules.families.z_image.spec import Z_IMAGE
from modules.formats.gguf_tensors import gguf_tensors, read_packed, unpack_blocks
from modules.formats.lazy_tensors import lazy_state
from modules.formats.safetensors_io import read_safetensors
from modules.quantization.linear import QuantizedLinear
from tests.builders.configs import config_fixture, laid_over
from tests.builders.runs import assert_equal_tensors, run
from tests.builders.z_image import tiny_transformer
from trainer.__main__ import main
from trainer.events import StepFinished
from trainer.preflight import check
from trainer.run.reading import load_family

State = dict[str, torch.Tensor]
BASE: dict[str, Any] = {
    "data": {"latent_cache": False, "text_cache": False},
    "training": {"epochs": 1, "batch_size": 2, "noise": {"distribution": "logit_normal", "dynamic_shift": False}},
    "output": {"dtype": "float32", "format": "diffusers"},
}


@pytest.fixture(scope="module")
def model(tiny_z_image: Path) -> Path:
    return tiny_z_image


@pytest.fixture(scope="module")
def weights(model: Path) -> State:
    return load_file(model / "transformer" / "diffusion_pytorch_model.safetensors")


@pytest.fixture(scope="module")
def hollow(model: Path) -> Path:
    """The model without the weights of its transformer."""
    folder = model.parent / "hollow"
    shutil.copytree(model, folder)
    (folder / "transformer" / "diffusion_pytorch_model.safetensors").unlink()
    return folder


config = config_fixture("hollow", BASE)


def fused(weights: Mapping[str, torch.Tensor]) -> State:
    """The weights under the names of ComfyUI's checkpoints."""
    slots = TRANSFORMER_FILE.layout(dict(tiny_transformer().config)).slots
    return {name: tensor.make() for name, tensor in to_original(slots, lazy_state(dict(weights))).items()}


def named(weights: State, layout: str) -> State:
    """The weights in one of the layouts that files of such models have."""
    state = weights if "diffusers" in layout else fused(weights)
    prefixes = {"ComfyUI": "model.diffusion_model.", "ComfyUI without model": "diffusion_model."}
    prefix = {**prefixes, "diffusers with its part": "transformer."}.get(layout, "")
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


LAYOUTS = ["ComfyUI", "ComfyUI without model", "ComfyUI bare", "diffusers", "diffusers with its part"]


def read_from(config: Config, file: Path, **more: Any) -> Config:
    return laid_over(laid_over(config, {"parts": {"transformer": {"file": str(file)}}}), more)


def denoiser_of(config: Config) -> Any:
    family = load_family(config.model, config.part, quantized=quantized_parts(config))
    return family.parts["transformer"].module


def loaded(config: Config) -> State:
    return dict(denoiser_of(config).state_dict())


# -- reading


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_replaces_the_transformer_bit_by_bit(
    layout: str, config: Config, weights: State, tmp_path: Path
) -> None:
    file = tmp_path / "transformer.safetensors"
    save_file({n: t.contiguous() for n, t in named(weights, layout).items()}, file)
    kind = identify(file)
    assert (kind.kind, kind.family, kind.prediction) == ("part", Z_IMAGE.name, "flow")
    assert kind.sentence == "A Z-Image transformer alone, float32."
    from_file = read_from(config, file)
    assert not check(from_file).errors
    assert_equal_tensors(loaded(from_file), weights)


def test_a_run_from_a_file_is_that_from_the_folder(config: Config, model: Path, weights: State, tmp_path: Path) -> None:
    file = tmp_path / "transformer.safetensors"
    save_file(named(weights, "ComfyUI"), file)
    ours = run(read_from(config, file))
    theirs = run(laid_over(config, {"model": {"base_model": str(model)}}))
    assert [e.loss for e in ours.of(StepFinished)] == [e.loss for e in theirs.of(StepFinished)]
    assert_equal_tensors(ours.weights, theirs.weights)


def test_a_gguf_file_gives_each_projection_its_rows(config: Config, weights: State, tmp_path: Path) -> None:
    file = tmp_path / "transformer.gguf"
    write_gguf(file, fused(weights), kind="Q8_0")
    unpacked = {name: tensor.make() for name, tensor in gguf_tensors(file)[0].items()}
    qkv = unpacked["layers.0.attention.qkv.weight"]
    settings = dict(tiny_transformer().config)
    layers = packed_layers(Z_IMAGE.name, Z_IMAGE.denoiser, file, settings)
    for name, rows in zip(("to_q", "to_k", "to_v"), qkv.chunk(3), strict=True):
        entry = layers[f"layers.0.attention.{name}"]
        values = unpack_blocks(read_packed(file, entry), entry.type, torch.float32)
        assert torch.equal(values.reshape(entry.shape), rows)
    assert torch.equal(loaded(read_from(config, file))["layers.0.attention.to_k.weight"], qkv.chunk(3)[1])
    packed = read_from(config, file, parts={"transformer": {"dtype": "gguf"}})
    assert not check(packed).errors
    trained = run(packed)
    assert trained.of(StepFinished)
    assert isinstance(denoiser_of(packed).get_submodule("layers.1.attention.to_v"), QuantizedLinear)


# -- writing


def test_a_fine_tune_is_a_file_of_the_transformer_that_is_read_again(
    config: Config, weights: State, tmp_path: Path
) -> None:
    file, saved = tmp_path / "transformer.safetensors", tmp_path / "tuned.safetensors"
    save_file(named(weights, "ComfyUI"), file)
    tuned = {
        "training": {"trains": "full", "learning_rate": 1e-3},
        "parts": {"text_encoder": {"dtype": "int8"}},  # which the file does not contain
        "output": {"model_format": "single_file", "destination": str(saved)},
    }
    ran = run(read_from(config, file, **tuned))
    assert Path(ran.finished.model_path) == saved
    tensors, metadata = read_safetensors(saved)
    assert tensors.keys() == named(weights, "ComfyUI").keys()  # and no other part
    assert metadata["modelspec.architecture"] == "Z-Image"
    assert "modelspec.vae_dtype" not in metadata
    assert CONFIGS_KEY in metadata
    assert identify(saved).family == Z_IMAGE.name
    trained = {n.removeprefix("transformer."): t for n, t in ran.weights.items() if n.startswith("transformer.")}
    assert trained
    again = loaded(read_from(config, saved))
    assert_equal_tensors({n: again[n] for n in trained}, trained)
    assert_equal_tensors(fused(again), {n.removeprefix("model.diffusion_model."): t for n, t in tensors.items()})
    assert not torch.equal(again["layers.0.attention.to_q.weight"], weights["layers.0.attention.to_q.weight"])


def test_a_folder_becomes_a_file_of_the_transformer(
    model: Path, weights: State, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "single.safetensors"
    assert main(["convert", str(model), str(file), "--to", "single"]) == 0
    assert "Left out: Text encoder (Qwen3), VAE." in capsys.readouterr().err
    assert_equal_tensors(read_safetensors(file)[0], named(weights, "ComfyUI"))


# -- bad input


def problem_of(config: Config) -> str:
    return {p.path: p.message for p in check(config).errors}["parts.transformer.file"]


@pytest.mark.parametrize("layout", ["ComfyUI", "diffusers"])
def test_a_file_that_does_not_fit_is_refused_before_the_run(
    layout: str, config: Config, weights: State, tmp_path: Path
) -> None:
    lacks, wrong = tmp_path / "lacks.safetensors", tmp_path / "wrong.safetensors"
    name = "layers.1.feed_forward.w1.weight"
    save_file(named({**weights, name: torch.zeros(3, 3)}, layout), wrong)
    save_file({n: t for n, t in named(weights, layout).items() if not n.endswith(name)}, lacks)
    assert "The Transformer in lacks.safetensors does not fit the base model's: it lacks 1" in problem_of(
        read_from(config, lacks)
    )
    assert f"{name}: (3, 3) where (85, 32) is expected" in problem_of(read_from(config, wrong))


def test_a_unet_is_no_transformer(config: Config, tmp_path: Path) -> None:
    unet = tmp_path / "unet.safetensors"
    save_file({"input_blocks.0.0.weight": torch.zeros(4, 4, 3, 3)}, unet)
    assert "contains no Transformer" in problem_of(read_from(config, unet))
