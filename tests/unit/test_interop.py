"""Which program loads a file, against results from the programs' source and from running them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from diffusers import StableDiffusionDepth2ImgPipeline

from modules.families.kinds.identify import identify, who_loads
from modules.families.kinds.record import Loads
from modules.families.parts.single_file.models import shipped_configs
from modules.families.parts.unet_clip_file.unet import unet_layers
from modules.formats.checkpoint_header import read_checkpoint_header
from tests.unit.test_kinds import Shapes, kohya, model_shapes, write_header

MATRICES = ("lora_down.weight", "lora_up.weight")


def found(path: Path) -> dict[str, Loads]:
    return {x.program: x for x in who_loads(read_checkpoint_header(path), identify(path)) if x.is_main}


def loads(path: Path) -> dict[str, bool | None]:
    return {program: x.complete for program, x in found(path).items()}


def notes(path: Path) -> dict[str, str]:
    return {program: x.note for program, x in found(path).items()}


def peft(model: str) -> Shapes:
    """A LoRA in diffusers' form on all of a model's UNet."""
    width = shipped_configs(model)["unet"]["cross_attention_dim"]
    paths = [layer.path for layer in unet_layers(shipped_configs(model)["unet"]) if layer.sort != "norm"]
    down = {f"unet.{p}.lora_A.weight": (4, width if "attn2.to_k" in p else 8) for p in paths}
    return down | {f"unet.{p}.lora_B.weight": (8, 4) for p in paths}


def layer(name: str, *factors: str) -> Shapes:
    return {f"{name}.{factor}": (4, 4) for factor in factors}


@pytest.mark.parametrize(
    ("shapes", "diffusers", "comfy", "a1111", "forge"),
    [
        (kohya("sd1"), True, True, True, True),
        (kohya("sdxl", sgm=True), True, True, True, True),
        (kohya("sdxl"), False, True, False, True),
        (peft("sdxl"), True, False, False, False),
        (peft("sd1"), True, False, False, False),
        (peft("sd1") | {"unet.conv_in.alpha": ()}, False, False, False, False),
        (kohya("sd1") | {"lora_unet_mid_block_attentions_0_proj_in.dora_scale": (4, 1)}, False, False, False, False),
        (kohya("sd1") | {"lora_unet_mid_block_attentions_0_proj_in.dora_scale": (1, 4)}, False, True, True, True),
        (
            layer("lora_unet_mid_block_attentions_0_proj_in", *(f"hada_w{n}_{m}" for n in (1, 2) for m in "ab")),
            *(False, True, True, True),
        ),
        ({"lora_unet_mid_block_attentions_0_proj_in.oft_blocks": (4, 1, 1)}, False, True, True, False),
        ({"lora_unet_mid_block_attentions_0_proj_in.oft_R.weight": (4, 1)}, False, False, False, False),
        (layer("lycoris_mid_block_attentions_0_proj_in", *MATRICES), False, True, False, True),
        ({"emb_params": (2, 768)}, True, True, True, True),
        ({"emp_params": (2, 768)}, True, True, True, True),
        ({"emp_params": (2, 768), "emp_params_out": (2, 768)}, False, False, False, False),
        ({"emp_params_out": (2, 1024)}, False, False, False, False),
        ({"clip_l": (2, 768), "clip_g": (2, 1280), "clip_l_out": (2, 768)}, False, False, False, False),
        ({"clip_l_out": (2, 768), "clip_g_out": (2, 1280)}, False, False, False, False),
        ({"emb_params": (2, 768), "more": (2, 768)}, False, True, False, False),
        ({"emb_params": (2, 512)}, None, None, None, None),
        ({"clip_l": (2, 768), "clip_g": (2, 1280)}, False, True, True, True),
    ],
)
def test_adapters_and_embeddings(
    shapes: Shapes, diffusers: bool | None, comfy: bool | None, a1111: bool | None, forge: bool | None, tmp_path: Path
) -> None:
    path = write_header(tmp_path / "f.safetensors", shapes)
    assert loads(path) == {"diffusers": diffusers, "ComfyUI": comfy, "A1111": a1111, "Forge": forge}


@pytest.mark.parametrize("shapes", [{"emb_params": (2, 768)}, {"encoder.down.0.block.0.norm1.weight": (128,)}])
def test_nobody_loads_a_file_with_code(shapes: Shapes, tmp_path: Path) -> None:
    path = write_header(tmp_path / "f.safetensors", shapes)
    header = replace(read_checkpoint_header(path), container="pickle", code=("os.system",))
    assert {x.complete for x in who_loads(header, identify(path))} == {False}


@pytest.mark.parametrize("model", ["sdxl", "sd1"])
def test_the_reason_for_layers_that_are_not_loaded_is_given(model: str, tmp_path: Path) -> None:
    comfy = found(write_header(tmp_path / "f.safetensors", peft(model)))["ComfyUI"]
    assert comfy.loads == "part"
    assert comfy.note == "does not map the attention of this form; convert it to the kohya form"


def test_mixed_names_and_strange_layers(tmp_path: Path) -> None:
    mixed = kohya("sdxl", sgm=True) | layer("lora_unet_mid_block_resnets_0_conv1", *MATRICES)
    path = write_header(tmp_path / "f.safetensors", mixed)
    assert loads(path) == {"diffusers": False, "ComfyUI": True, "A1111": True, "Forge": True}
    path = write_header(tmp_path / "f.safetensors", kohya("sd1") | {"lora_unet_strange.lora_down.weight": (4, 4)})
    assert set(loads(path).values()) == {False}
    assert found(path)["Forge"].answer == "partly"
    assert notes(path)["Forge"] == "ignores names that the model does not have"


@pytest.mark.parametrize("model", ["sd1", "sd2", "sdxl", "sdxl_refiner"])
def test_whole_checkpoints_load_everywhere_and_incomplete_ones_nowhere(model: str, tmp_path: Path) -> None:
    path = write_header(tmp_path / "f.safetensors", model_shapes(model))
    assert set(loads(path).values()) == {True}
    path = write_header(tmp_path / "f.safetensors", model_shapes(model, without="first_stage_model."))
    assert set(loads(path).values()) == {False}
    assert notes(path)["ComfyUI"] == "missing: 248 weights of the VAE; choose a VAE there"


def test_v_prediction_needs_a_setting_where_a_program_does_not_detect_it(tmp_path: Path) -> None:
    path = write_header(tmp_path / "f.safetensors", model_shapes("sdxl") | {"v_pred": (0,)})
    found = notes(path)
    assert found["ComfyUI"] == found["Forge"] == ""
    assert found["A1111"] == "takes it for epsilon unless a .yaml is next to it"
    assert "scheduler" in found["diffusers"]
    write_header(path, model_shapes("sdxl") | {"v_pred": (0,), "ztsnr": (0,)})
    path.with_suffix(".yaml").write_text("x: sgm.modules.diffusionmodules.denoiser_scaling.VScaling\n")
    found = notes(path)
    assert found["ComfyUI"] == ""
    assert found["Forge"] == ""
    assert found["A1111"].startswith("keep the .yaml next to it; set ")
    write_header(path, model_shapes("sdxl"))
    assert "no v_pred marker" in notes(path)["ComfyUI"]
    assert notes(path)["Forge"] == notes(path)["A1111"] == "keep the .yaml next to it"
    path = write_header(tmp_path / "g.safetensors", model_shapes("sd1"), metadata={"modelspec.prediction_type": "v"})
    assert "ModelSamplingDiscrete" in notes(path)["ComfyUI"]
    assert "needs a .yaml" in notes(path)["A1111"]


def test_a_depth_model_in_one_file_is_not_for_comfyui_and_diffusers(tmp_path: Path) -> None:
    shapes = model_shapes("sd2") | {"model.diffusion_model.input_blocks.0.0.weight": (320, 5, 3, 3)}
    path = write_header(tmp_path / "f.safetensors", shapes)
    assert identify(path).variant == "depth"
    assert loads(path) == {"diffusers": False, "ComfyUI": False, "A1111": True, "Forge": None}
    assert not hasattr(StableDiffusionDepth2ImgPipeline, "from_single_file")


def test_edm_is_taken_for_epsilon_by_a1111_and_diffusers(tmp_path: Path) -> None:
    path = write_header(tmp_path / "f.safetensors", model_shapes("sdxl") | {"edm_vpred.sigma_max": ()})
    assert loads(path) == {"diffusers": False, "ComfyUI": True, "A1111": False, "Forge": None}
    assert "takes it for epsilon" in notes(path)["diffusers"]


def test_only_the_web_interfaces_support_older_files(tmp_path: Path) -> None:
    shapes = {n.replace("transformer.text_model.", "transformer."): s for n, s in model_shapes("sd1").items()}
    path = write_header(tmp_path / "f.safetensors", shapes)
    assert loads(path) == {"diffusers": False, "ComfyUI": True, "A1111": True, "Forge": True}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.diffusion_model.input_blocks.0.0.weight", (192, 4, 3, 3)),
        ("model.diffusion_model.input_blocks.4.1.transformer_blocks.0.attn2.to_k.weight", (640, 1536)),
    ],
)
def test_a_checkpoint_of_a_size_that_was_never_published(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    shapes = model_shapes("sdxl")
    assert name in shapes
    if "attn2" in name:
        shapes |= {n: shape for n in shapes if n.endswith("attn2.to_k.weight")}
    path = write_header(tmp_path / "f.safetensors", {**shapes, name: shape})
    assert identify(path).model == "sdxl"
    assert loads(path) == {"diffusers": False, "ComfyUI": False, "A1111": None, "Forge": None}
    assert "does not recognise" in notes(path)["ComfyUI"]
    assert "needs the config" in notes(path)["diffusers"]


def test_a_checkpoint_with_the_configs_of_another_size(tmp_path: Path) -> None:
    configs = shipped_configs("sd1")
    configs["vae"]["block_out_channels"] = [64, 128, 256, 256]
    metadata = {"darkroom_part_configs": json.dumps(configs)}
    path = write_header(tmp_path / "f.safetensors", model_shapes("sd1"), metadata=metadata)
    assert loads(path)["ComfyUI"] is False
    metadata = {"darkroom_part_configs": json.dumps(shipped_configs("sd1"))}
    write_header(path, model_shapes("sd1"), metadata=metadata)
    assert loads(path)["ComfyUI"] is True
