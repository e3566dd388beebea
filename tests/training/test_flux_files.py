"""Files of FLUX.1's transformer in every layout, and LoRA files in the names of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.gguf_file import write_gguf
from modules.config.codec import decode, encode
from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.families.flux.files import TRANSFORMER_FILE
from modules.families.flux.spec import FLUX
from modules.families.kinds.identify import identify, who_loads_file
from modules.families.parts.single_file.denoiser_file import packed_layers
from modules.families.parts.single_file.moves import to_original
from modules.formats.gguf_tensors import gguf_tensors
from modules.formats.lazy_tensors import lazy_state
from modules.formats.safetensors_io import read_safetensors
from modules.quantization.linear import QuantizedLinear
from tests.builders.configs import config_fixture, laid_over
from tests.builders.flux import tiny_transformer
from tests.builders.part_files import scaled_float8
from tests.builders.runs import assert_equal_tensors, run
from trainer.__main__ import main
from trainer.events import StepFinished
from trainer.preflight import check
from trainer.run.reading import load_family

State = dict[str, torch.Tensor]
BASE: dict[str, Any] = {
    "model": {"family": {"text_tokens": 16}},
    "training": {"epochs": 1, "batch_size": 2, "learning_rate": 0.01},
    "parts": {name: {"train": False} for name in FLUX.names_of("text_encoder")},
    "output": {"dtype": "float32", "format": "kohya"},
}


@pytest.fixture(scope="module")
def weights(tiny_flux: Path) -> State:
    return load_file(tiny_flux / "transformer" / "diffusion_pytorch_model.safetensors")


config = config_fixture("tiny_flux", BASE)


def published(weights: State) -> State:
    """The transformer in the names of the published checkpoints."""
    original = to_original(TRANSFORMER_FILE.layout(dict(tiny_transformer().config)).slots, lazy_state(weights))
    return {name: tensor.make().contiguous() for name, tensor in original.items()}


def read_from(config: Config, file: Path, **part: Any) -> Config:
    return laid_over(config, {"parts": {"transformer": {"file": str(file), **part}}})


def denoiser_of(config: Config) -> Any:
    return load_family(config.model, config.part, quantized=quantized_parts(config)).parts["transformer"].module


# -- the transformer


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "diffusion_model.", "diffusers"])
def test_a_file_replaces_the_transformer_bit_by_bit(
    prefix: str, config: Config, weights: State, tmp_path: Path
) -> None:
    file = tmp_path / "flux.safetensors"
    state = weights if prefix == "diffusers" else {f"{prefix}{n}": t for n, t in published(weights).items()}
    save_file({name: torch.zeros_like(tensor) + tensor for name, tensor in state.items()}, file)
    assert identify(file).sentence == "A FLUX.1 dev transformer alone, float32."
    from_file = read_from(config, file)
    assert not check(from_file).errors
    assert_equal_tensors(dict(denoiser_of(from_file).state_dict()), weights)


def test_a_gguf_file_gives_each_layer_its_rows(config: Config, weights: State, tmp_path: Path) -> None:
    file = tmp_path / "flux.gguf"
    write_gguf(file, published(weights), kind="Q8_0")
    unpacked = {name: tensor.make() for name, tensor in gguf_tensors(file)[0].items()}
    state = denoiser_of(read_from(config, file)).state_dict()
    parts = [f"single_transformer_blocks.1.{n}.weight" for n in ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")]
    assert torch.equal(torch.cat([state[n] for n in parts]), unpacked["single_blocks.1.linear1.weight"])
    swapped = unpacked["final_layer.adaLN_modulation.1.weight"]
    assert torch.equal(state["norm_out.linear.weight"], swapped.roll(len(swapped) // 2, 0))
    layers = packed_layers(FLUX.name, FLUX.denoiser, file, dict(tiny_transformer().config))
    assert {"single_transformer_blocks.1.attn.to_k", "transformer_blocks.0.attn.add_v_proj"} <= layers.keys()
    assert "norm_out.linear" not in layers
    packed = read_from(config, file, dtype="gguf")
    assert not check(packed).errors
    assert run(packed).of(StepFinished)
    assert isinstance(denoiser_of(packed).get_submodule("single_transformer_blocks.0.proj_mlp"), QuantizedLinear)


def test_scaled_float8_is_read_with_its_scales(config: Config, weights: State, tmp_path: Path) -> None:
    file = tmp_path / "flux.safetensors"
    save_file(scaled_float8(published(weights), "scale_weight", keeps=("norm", "_in.", "final_layer")), file)
    from_file = read_from(config, file)
    assert not check(from_file).errors
    for name, tensor in denoiser_of(from_file).state_dict().items():
        torch.testing.assert_close(tensor.float(), weights[name], rtol=0.07, atol=0.02)


def test_a_fine_tune_is_a_file_with_the_published_names(config: Config, weights: State, tmp_path: Path) -> None:
    saved = tmp_path / "tuned.safetensors"
    tuned = {
        "training": {"trains": "full", "learning_rate": 1e-3},
        "output": {"model_format": "single_file", "destination": str(saved)},
    }
    ran = run(laid_over(config, tuned))
    tensors, metadata = read_safetensors(saved)
    assert {n.removeprefix("model.diffusion_model.") for n in tensors} == published(weights).keys()
    assert metadata["modelspec.architecture"] == "flux-1-dev"
    again = denoiser_of(read_from(config, saved)).state_dict()
    trained = {n.removeprefix("transformer."): t for n, t in ran.weights.items() if n.startswith("transformer.")}
    assert trained
    assert_equal_tensors({n: again[n] for n in trained}, trained)


def test_a_transformer_of_another_model_is_refused(config: Config, weights: State, tmp_path: Path) -> None:
    file = tmp_path / "flux.safetensors"
    save_file({n: t for n, t in published(weights).items() if "guidance_in" not in n}, file)
    [error] = check(read_from(config, file)).errors
    assert error.path == "parts.transformer.file"
    assert "lacks 4 of its weights; the first is model.diffusion_model.guidance_in" in error.message


# -- LoRA files


@pytest.mark.parametrize("form", ["kohya", "comfyui"])
def test_a_lokr_has_names_that_comfyui_loads_and_continues(config: Config, tmp_path: Path, form: str) -> None:
    """The change of q alone cannot be that of the whole matrix, so it has SimpleTuner's name."""
    tree = encode(laid_over(config, {"output": {"format": form}}))
    lokr = decode({**tree, "adapter": {"name": "lokr", "rank": 2, "factor": 4}}).config
    file = Path(run(lokr).finished.model_path)
    layers = {name.partition(".lokr")[0] for name in read_safetensors(file)[0]}
    assert "lycoris_transformer_blocks_0_attn_to_q" in layers
    assert not [name for name in layers if name.endswith(("qkv", "linear1"))]
    assert {x.program: x.loads for x in who_loads_file(file)[1]}[
        "ComfyUI"
    ] == "unknown"  # its size alone was not measured
    output = {"destination": str(tmp_path / "further.safetensors")}
    further = decode({**encode(laid_over(lokr, {"output": output}))}).config
    further = laid_over(further, {"adapter": {"start_from": str(file)}})
    assert not check(further).errors
    assert run(further).of(StepFinished)


def test_a_lokr_on_a_whole_matrix_is_refused_before_the_run(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "lokr.safetensors"
    factors = {"lokr_w1": torch.ones(4, 4), "lokr_w2": torch.ones(24, 8), "alpha": torch.tensor(1.0)}
    save_file({f"lora_unet_double_blocks_0_img_attn_qkv.{n}": t for n, t in factors.items()}, file)
    tree = encode(config)
    lokr = decode({**tree, "adapter": {"name": "lokr", "start_from": str(file)}}).config
    [message] = [p.message for p in check(lokr).errors if p.path == "adapter.start_from"]
    assert message.endswith("which this model has as several layers, by LoKr, which cannot be divided.")


def test_the_names_of_comfyui_and_of_diffusers_hold_the_same_lora(config: Config, tmp_path: Path) -> None:
    """Of all parts: kohya's file becomes ComfyUI's, which becomes diffusers', with the same layers and strengths."""
    trained = {"parts": {name: {"train": True} for name in FLUX.names_of("text_encoder")}}
    kohya = Path(run(laid_over(config, trained)).finished.model_path)
    comfy, peft, direct = (tmp_path / f"{name}.safetensors" for name in ("comfy", "peft", "direct"))
    assert main(["convert", str(kohya), str(comfy), "--to", "comfyui"]) == 0
    assert main(["convert", str(comfy), str(peft), "--to", "peft"]) == 0
    assert main(["convert", str(kohya), str(direct), "--to", "peft"]) == 0
    names = {name.partition(".lora")[0] for name in read_safetensors(comfy)[0]}
    assert {
        "diffusion_model.double_blocks.1.txt_attn.qkv",
        "diffusion_model.single_blocks.0.linear1",
        "text_encoders.clip_l.transformer.text_model.encoder.layers.0.mlp.fc1",
        "text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q",
    } <= names
    assert_equal_tensors(read_safetensors(peft)[0], read_safetensors(direct)[0])
    assert {x.program: x.loads for x in who_loads_file(comfy)[1]}[
        "ComfyUI"
    ] == "unknown"  # its size alone was not measured
