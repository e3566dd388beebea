"""Krea 2 alone: its text, its mask, Raw and Turbo, its files; what flow families share is in tests/training/flow."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.config.codec import decode, encode
from modules.config.imports.ai_toolkit import tree_of_ai_toolkit
from modules.config.imports.kohya_settings import tree_of_kohya
from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.kinds.identify import identify, who_loads_file
from modules.families.krea2.files import TRANSFORMER_FILE
from modules.families.krea2.model import Krea2, read_layers
from modules.families.krea2.spec import KREA2
from modules.families.parts.conditioning import TokenConditioning, visible_tokens
from modules.families.parts.single_file.checkpoint import load_part_file
from modules.families.parts.single_file.moves import to_original
from modules.formats.lazy_tensors import lazy_state
from modules.formats.safetensors_io import read_safetensors
from modules.system.devices import CPU
from modules.system.errors import DarkroomError
from tests.builders.configs import config_fixture, laid_over
from tests.builders.krea2 import krea2_pipeline, tiny_qwen_vl
from tests.builders.pipelines import family_fixture, load_tiny, noise_of
from tests.builders.runs import run
from trainer.events import SampleReady
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate

config = config_fixture("tiny_krea2", {"training": {"epochs": 1, "noise": {"distribution": "logit_normal"}}})
family = family_fixture("tiny_krea2", KREA2.name)


@pytest.fixture
def turbo(tiny_krea2: Path, tmp_path: Path) -> Path:
    """The model with the mark of Turbo in its index, under a name that does not show it."""
    folder = tmp_path / "quick"
    shutil.copytree(tiny_krea2, folder)
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, "is_distilled": True}))
    return folder


# -- text


@torch.no_grad()
def test_a_prompt_that_is_too_long_keeps_the_end_of_the_template(family: Krea2, tiny_krea2: Path) -> None:
    prompt = "a disc " * 200
    ours, pipe = family.encode_prompts([prompt]), krea2_pipeline(tiny_krea2, family)
    states_1LKD, mask_1L = pipe.encode_prompt(prompt, device=CPU.torch)
    assert ours.lengths == (512,)
    assert mask_1L.all()
    torch.testing.assert_close(ours.states_BLD, states_1LKD.flatten(2), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_padding_is_masked_and_equally_long_prompts_have_no_mask(family: Krea2) -> None:
    assert visible_tokens((4, 4), CPU.torch) is None
    mask = visible_tokens((2, 3), CPU.torch)
    assert mask is not None
    assert mask.tolist() == [[True, True, False], [True, True, True]]
    noisy, timesteps = noise_of(family, batch=2, seed=4), torch.tensor([300.0, 300.0])
    text = family.encode_prompts(["a", "a red disc of a disc"])
    beyond = text.states_BLD.clone()
    beyond[0, text.lengths[0] :] = 1e3
    before, after = (family.predict(noisy, timesteps, t) for t in (text, TokenConditioning(beyond, text.lengths)))
    assert torch.equal(after, before)


def test_attention_that_takes_no_mask_is_refused(config: Config) -> None:
    [error] = check(laid_over(config, {"training": {"attention": "sdpa_flash"}})).errors
    assert error.path == "training.attention"
    assert "cannot leave out the padding of shorter prompts, as Krea 2 needs" in error.message
    assert "flash" not in error.advice
    assert not check(laid_over(config, {"training": {"attention": "sdpa_math"}})).errors


def test_the_published_encoder_has_the_published_layers() -> None:
    assert read_layers(36, 12) == (2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35)
    assert read_layers(36, 2, [4, 36]) == (4, 36)
    for layers, read, given in ((8, 12, None), (8, 2, [3, 9]), (8, 2, [3])):
        with pytest.raises(DarkroomError, match=f"has {layers} layers"):
            read_layers(layers, read, given)


def test_the_vision_tower_is_never_read(family: Krea2, tiny_krea2: Path) -> None:
    whole = tiny_qwen_vl()
    text = {n.removeprefix("language_model.") for n in whole.state_dict() if n.startswith("language_model.")}
    assert set(family.modules["text_encoder"].state_dict()) == text
    [file] = (tiny_krea2 / "text_encoder").glob("*.safetensors")
    assert any(name.startswith("visual.") for name in load_file(file))


@pytest.mark.parametrize("prefix", ["model.language_model.", "model.", ""])
def test_a_file_of_the_text_encoder_replaces_it(prefix: str, family: Krea2, tmp_path: Path) -> None:
    """The names of transformers' whole Qwen3-VL, which ComfyUI's file has, and those of the language model alone."""
    module, file = family.modules["text_encoder"], tmp_path / "qwen3vl_4b.safetensors"
    state = {f"{prefix}{name}": tensor.clone() for name, tensor in module.state_dict().items()}
    save_file({**state, "model.visual.pos_embed.weight": torch.ones(2, 2)}, file)
    part = KREA2.parts[1]
    read = load_part_file(file, KREA2, part, module.config.to_dict(), torch.float32)
    assert all(torch.equal(tensor, read.state_dict()[name]) for name, tensor in module.state_dict().items())
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(read(ids).last_hidden_state, module(ids).last_hidden_state)


# -- Raw and Turbo


def test_turbo_is_recognized_by_its_name_and_its_index(config: Config, turbo: Path) -> None:
    for name, what in (("krea/Krea-2-Turbo", "its name"), (str(turbo), "is_distilled in its model_index.json")):
        [problem] = [
            p
            for p in check(laid_over(config, {"model": {"base_model": name}})).problems
            if "seems to be a distilled model" in p.message
        ]
        assert problem.message.endswith(f"by {what}.")
        assert "Train on Krea 2 Raw" in problem.advice
    assert not [p for p in check(config).problems if "distilled" in p.message]


def test_turbo_is_sampled_at_its_one_shift(family: Krea2, turbo: Path, tiny_krea2: Path, tmp_path: Path) -> None:
    quick: Krea2 = load_tiny(turbo, KREA2.name)
    file = tmp_path / "krea2_turbo.safetensors"
    shutil.copyfile(next((tiny_krea2 / "transformer").glob("*.safetensors")), file)
    by_name: Krea2 = load_tiny(tiny_krea2, KREA2.name, part_files={"transformer": str(file)})
    for side in (512, 1280):
        for model in (quick, by_name):
            assert model.process.convention.shift_at(side, side) == pytest.approx(math.exp(1.15))
    shifts = [family.process.convention.shift_at(side, side) for side in (256, 1024, 1280)]
    assert shifts == pytest.approx([1.65, 2.48, 3.16], abs=0.01)


def test_a_run_on_raw_is_sampled_on_turbo(config: Config, turbo: Path) -> None:
    prompt = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2, "guidance": 1.0}
    sampled = {"sampling": {"at_end": True, "prompts": [prompt], "model": str(turbo)}}
    assert not check(laid_over(config, sampled)).errors
    ran = run(laid_over(config, sampled))
    assert ran.finished.outcome == "finished"
    assert len(ran.of(SampleReady)) == 1


def test_a_saved_folder_keeps_what_its_index_says(config: Config, turbo: Path, tmp_path: Path) -> None:
    output = {"model_format": "diffusers", "destination": str(tmp_path / "tuned"), "dtype": "float32"}
    tree = {"model": {"base_model": str(turbo)}, "training": {"trains": "full"}, "output": output}
    saved = Path(run(laid_over(config, tree)).finished.model_path)
    index = json.loads((saved / "model_index.json").read_text())
    assert (index["is_distilled"], index["text_encoder_select_layers"]) == (True, [1, 3])
    assert index["text_encoder"] == ["transformers", "Qwen3VLTextModel"]
    assert load_tiny(saved, KREA2.name).reader.layers == (1, 3)


# -- layers


def test_presets_of_layers_and_what_is_never_quantized(config: Config) -> None:
    every = {layer.path for layer in family_layers()}
    chosen = quantized_parts(laid_over(config, {"parts": {"transformer": {"dtype": "int8"}}})).formats["transformer"]
    kept = {path for path in every if not chosen.takes(path)}
    ends = {"img_in", "time_embed.linear_1", "time_embed.linear_2", "time_mod_proj", "final_layer.linear"}
    assert kept == {*ends, "txt_in.linear_1", "txt_in.linear_2", "text_fusion.projector"}
    presets = {name: {p for p in every if layers.takes(p)} for name, layers in KREA2.denoiser.model.layers.items()}
    assert len(every) == 264  # musubi-tuner's default, which is that of the model's authors
    assert {name: len(paths) for name, paths in presets.items()} == {
        "attention": 140,
        "attention_mlp": 224,
        "blocks": 224,
    }
    assert KREA2.denoiser.model.layers_elsewhere == "all"


def family_layers() -> list[Any]:
    from modules.families.krea2.files import MODEL

    return list(MODEL.adapter_targets(MODEL.shipped_configs()).all)


def test_an_adapter_of_all_layers_has_the_names_of_the_checkpoint(
    config: Config, family: Krea2, tmp_path: Path
) -> None:
    """A LoKr, too: ComfyUI reported names of SimpleTuner's as unknown (SimpleTuner 3222)."""
    layout = TRANSFORMER_FILE.layout(dict(family.denoiser.config))
    state = lazy_state(family.denoiser.state_dict())
    weights = {n.removesuffix(".weight") for n in to_original(layout.slots, state) if n.endswith(".weight")}
    for name in ("lora", "lokr"):
        output = {"format": "comfyui", "destination": str(tmp_path / f"{name}.safetensors")}
        adapter = {"name": name, "rank": 2, "layers": "all"}
        ran = run(decode({**encode(laid_over(config, {"output": output})), "adapter": adapter}).config)
        file = Path(ran.finished.model_path)
        layers = {key.split(".lo")[0].removesuffix(".alpha") for key in read_safetensors(file)[0]}
        assert layers == {f"diffusion_model.{name}" for name in weights}
        assert {x.program: x.loads for x in who_loads_file(file)[1]}["ComfyUI"] == "unknown"  # of a model of this size
        assert not check(decode({**encode(config), "adapter": {**adapter, "start_from": str(file)}}).config).errors


def test_norms_of_a_file_stay_in_float32(family: Krea2, tmp_path: Path) -> None:
    """As in diffusers' class: their scale is 1 and the weight, which bfloat16 would round."""
    module, file = family.denoiser, tmp_path / "raw.safetensors"
    original = to_original(TRANSFORMER_FILE.layout(dict(module.config)).slots, lazy_state(module.state_dict()))
    save_file({name: tensor.make().contiguous() for name, tensor in original.items()}, file)
    assert (identify(file).kind, identify(file).family) == ("part", KREA2.name)
    read = load_part_file(file, KREA2, KREA2.denoiser, dict(module.config), torch.bfloat16)
    dtypes = {name: tensor.dtype for name, tensor in read.state_dict().items()}
    norms = {name for name in dtypes if any("norm" in step for step in name.split("."))}
    assert {name for name, dtype in dtypes.items() if dtype == torch.float32} == norms
    assert set(dtypes.values()) == {torch.float32, torch.bfloat16}


# -- memory


@pytest.mark.parametrize(("dtype", "least", "most"), [("bfloat16", 27.0, 34.0), ("int8", 15.0, 21.0)])
def test_the_published_model_needs_the_known_memory_at_1024_px(dtype: str, least: float, most: float) -> None:
    """SimpleTuner measured about 33 GB with bf16 weights and 20 with int8 ones, checkpointed, on all layers."""
    parts = {"transformer": {"dtype": dtype, "checkpointing": "block"}, "text_encoder": {"dtype": dtype}}
    tree = {"model": {"family": "krea2", "base_model": "krea/Krea-2-Raw"}, "parts": parts}
    tree |= {"training": {"precision": "bfloat16"}, "data": {"resolution_px": [1024]}}
    estimate = memory_estimate(decode({"darkroom_version": 7, **tree}).config, {Size(1024, 1024): 10})
    assert estimate is not None
    assert least < estimate.peak.total_bytes / 1e9 < most


# -- configs of other programs


def test_settings_of_musubi_tuner() -> None:
    given = {
        "network_module": "networks.lora_krea2",
        "network_dim": 32,
        "network_alpha": 32,
        "dit": "raw.safetensors",
        "turbo_dit": "turbo.safetensors",
        "text_encoder": "qwen3vl_4b_bf16.safetensors",
        "vae": "qwen_image_vae.safetensors",
        "timestep_sampling": "krea2_shift",
        "weighting_scheme": "none",
        "model_prediction_type": "raw",
        "fp8_base": True,
        "fp8_scaled": True,
        "blocks_to_swap": 14,
    }
    notes: list[Any] = []
    config = decode(tree_of_kohya(given, notes)).config
    assert (config.family.name, config.model.base_model) == (KREA2.name, "raw.safetensors")
    assert config.sampling.model == "turbo.safetensors"
    assert config.part("text_encoder").file == "qwen3vl_4b_bf16.safetensors"
    assert config.part("vae").file == "qwen_image_vae.safetensors"
    assert (config.adapter.layers, config.adapter.rank) == ("all", 32)
    assert config.training.noise.dynamic_shift
    assert (config.part("transformer").dtype, config.part("transformer").offload_fraction) == ("float8", 0.5)
    assert not [note for note in notes if note.severity != "info"]


def test_a_config_of_ai_toolkit() -> None:
    process = {
        "type": "diffusion_trainer",
        "model": {"name_or_path": "krea/Krea-2-Raw", "arch": "krea2", "quantize": True, "qtype": "qfloat8"},
        "network": {"type": "lora", "linear": 32, "linear_alpha": 32},
        "train": {"noise_scheduler": "flowmatch", "timestep_type": "sigmoid", "lr": 1e-4},
    }
    notes: list[Any] = []
    config = decode(
        tree_of_ai_toolkit({"job": "extension", "config": {"name": "x", "process": [process]}}, notes)
    ).config
    assert (config.family.name, config.model.base_model) == (KREA2.name, "krea/Krea-2-Raw")
    assert (config.adapter.layers, config.adapter.rank) == ("all", 32)
    assert config.training.noise.distribution == "logit_normal"
    assert config.part("transformer").dtype == "float8"
