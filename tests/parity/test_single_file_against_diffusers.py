"""Our single files in diffusers' own loader, and its converters on ours at full size: the same weights, to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    StableDiffusionInpaintPipeline,
    StableDiffusionPipeline,
    StableDiffusionXLInpaintPipeline,
    StableDiffusionXLPipeline,
)
from diffusers.loaders.single_file_utils import (
    convert_ldm_clip_checkpoint,
    convert_ldm_unet_checkpoint,
    convert_ldm_vae_checkpoint,
    convert_open_clip_checkpoint,
)
from safetensors.torch import load_file, save_file
from transformers import CLIPTokenizer

from modules.families.parts.clip_vocabulary import clip_merges, clip_vocabulary
from modules.families.parts.lora_names import file_path, kohya_naming, peft_name
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.models import layouts, shipped_configs
from modules.families.parts.single_file.write import CheckpointTraits, file_state, original_tensors
from modules.formats.adapter_layers import AdapterLayer, lora_layer
from modules.formats.adapter_names import DOWN, UP
from modules.formats.lazy_tensors import lazy_state
from modules.formats.lora_files import to_kohya, to_peft
from tests.builders.single_files import CLASSES, build_parts, model_class, part_names, tiny_configs, write_tiny

pytestmark = pytest.mark.usefixtures("one_thread")

MODELS = ["sd1", "sd2", "sdxl"]


PIPELINES = {
    "StableDiffusionPipeline": StableDiffusionPipeline,
    "StableDiffusionInpaintPipeline": StableDiffusionInpaintPipeline,
    "StableDiffusionXLPipeline": StableDiffusionXLPipeline,
    "StableDiffusionXLInpaintPipeline": StableDiffusionXLInpaintPipeline,
}


def config_folder(folder: Path, model: str, kind: str) -> Path:
    """The configs that `from_single_file` needs beside the weights, of a pipeline of a kind."""
    configs = tiny_configs(model, in_channels=9 if "Inpaint" in kind else 4)
    for name, config in configs.items():
        file = "scheduler_config.json" if name == "scheduler" else "config.json"
        (folder / name).mkdir(parents=True)
        (folder / name / file).write_text(json.dumps(config))
    index: dict[str, Any] = {"_class_name": kind, "scheduler": ["diffusers", configs["scheduler"]["_class_name"]]}
    for name in part_names(configs):
        index[name] = ["transformers" if name.startswith("text") else "diffusers", CLASSES[name].__name__]
    index |= {"tokenizer": ["transformers", "CLIPTokenizer"]}
    index |= {"tokenizer_2": ["transformers", "CLIPTokenizer"]} if model == "sdxl" else {}
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    ("model", "variant"),
    [
        *((model, "") for model in MODELS),
        ("sd1", "inpainting"),
        *(pytest.param(model, "inpainting", marks=pytest.mark.full) for model in ("sd2", "sdxl")),
    ],
)
def test_diffusers_loads_our_file_to_the_same_weights(model: str, variant: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    parts = write_tiny(path, model, variant=variant)
    tokenizer = CLIPTokenizer(vocab=clip_vocabulary(), merges=clip_merges(), model_max_length=77)
    options = {"tokenizer": tokenizer} | ({"tokenizer_2": tokenizer} if model == "sdxl" else {})
    options |= {} if model == "sdxl" else {"safety_checker": None, "feature_extractor": None}
    kind = f"StableDiffusion{'XL' if model == 'sdxl' else ''}{'Inpaint' if variant else ''}Pipeline"
    folder = config_folder(tmp_path / "configs", model, kind)
    pipe = PIPELINES[kind].from_single_file(str(path), config=str(folder), local_files_only=True, **options)
    assert pipe.unet.config.in_channels == (9 if variant else 4)
    for name, module in parts.items():
        theirs = getattr(pipe, name).state_dict()
        assert theirs.keys() == module.state_dict().keys()
        assert all(torch.equal(tensor, theirs[key]) for key, tensor in module.state_dict().items()), name


@pytest.mark.parametrize("model", MODELS)
def test_diffusers_converters_find_every_weight_of_the_full_models(model: str) -> None:
    """On the meta device: our original names go through diffusers' converters and come out as its own."""
    configs = shipped_configs(model)
    modules = {name: empty_part(CLASSES[name], configs[name]) for name in part_names(configs)}
    states = {name: lazy_state(module.state_dict()) for name, module in modules.items()}
    original = {n: t.make() for n, t in original_tensors(states, configs, CheckpointTraits(model)).items()}
    for name, layout in layouts(model, configs).items():
        if name == "unet":
            converted = convert_ldm_unet_checkpoint(dict(original), configs["unet"])
        elif name == "vae":
            converted = convert_ldm_vae_checkpoint(dict(original), configs["vae"])
        elif any(len(slot.shares) > 1 for slot in layout.slots):
            converted = convert_open_clip_checkpoint(modules[name], dict(original), prefix=layout.prefix)
        else:
            converted = convert_ldm_clip_checkpoint(dict(original))
        wanted = {k: t.shape for k, t in file_state(model_class(model, name), states[name]).items()}
        found = {k: tuple(t.shape) for k, t in converted.items() if not k.endswith("position_ids")}
        assert found == wanted


def test_a_file_converted_by_diffusers_is_read_by_us_to_the_same_weights(tmp_path: Path) -> None:
    """The other direction: diffusers and our reader convert the file's tensors to the same weights."""
    from modules.families.parts.single_file.checkpoint import open_checkpoint, part_state

    path = tmp_path / "model.safetensors"
    write_tiny(path, "sd1")
    state = load_file(path)
    checkpoint = open_checkpoint(path)
    for name, converted in (
        ("unet", convert_ldm_unet_checkpoint(dict(state), tiny_configs("sd1")["unet"])),
        ("vae", convert_ldm_vae_checkpoint(dict(state), tiny_configs("sd1")["vae"])),
    ):
        ours = part_state(checkpoint, name)
        assert ours.keys() == converted.keys()
        assert all(torch.equal(tensor.make(), converted[key]) for key, tensor in ours.items())


def toy_layers(parts: dict[str, Any]) -> list[AdapterLayer]:
    """LoRA weights on every layer of a tiny model, convolutions among them."""
    generator = torch.Generator().manual_seed(0)
    layers = []
    for part in (p for p in parts if p != "vae"):
        for path, module in parts[part].named_modules():
            if path == "text_projection" or not isinstance(module, torch.nn.Linear | torch.nn.Conv2d):
                continue
            rows, columns, *kernel = module.weight.shape
            down = torch.randn(2, columns, *kernel, generator=generator) * 0.1
            up = torch.randn(rows, 2, *(1 for _ in kernel), generator=generator) * 0.1
            layers.append(lora_layer(part, file_path(part, path), down, up, 3.0))
    return layers


def adapted_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The change that diffusers adds to each weight after loading a LoRA file."""
    found = {}
    for name, layer in module.named_modules():
        if hasattr(layer, "lora_A") and len(layer.lora_A):
            [adapter] = layer.lora_A
            a, b = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
            found[name] = (b.flatten(1) @ a.flatten(1)).detach() * layer.scaling[adapter]
    return found


@pytest.mark.parametrize("form", ["kohya", "peft"])
@pytest.mark.parametrize("model", ["sd1", "sdxl"])
def test_stock_diffusers_loads_every_layer_of_our_lora_files(model: str, form: str, tmp_path: Path) -> None:
    """SDXL in kohya form has SGM names, SD diffusers' own; both forms have the effect they were written with."""
    configs = tiny_configs(model)
    parts = build_parts(configs)
    layers = toy_layers(parts)
    wanted = {
        f"{layer.part}.{layer.path}": (layer.factors[UP].flatten(1) @ layer.factors[DOWN].flatten(1)) * (3.0 / 2)
        for layer in layers
    }
    if form == "kohya":
        save_file(to_kohya(layers, kohya_naming(model, configs)), tmp_path / "lora.safetensors")
    else:
        tensors, metadata = to_peft(layers, peft_name)
        save_file({n: t.make() for n, t in tensors.items()}, tmp_path / "lora.safetensors", metadata)
    tokenizer = CLIPTokenizer(vocab=clip_vocabulary(), merges=clip_merges(), model_max_length=77)
    options = {"tokenizer": tokenizer} | ({"tokenizer_2": tokenizer} if model == "sdxl" else {})
    options |= {} if model == "sdxl" else {"safety_checker": None, "feature_extractor": None}
    kind = StableDiffusionXLPipeline if model == "sdxl" else StableDiffusionPipeline
    pipe = kind(**parts, scheduler=DDIMScheduler.from_config(configs["scheduler"]), **options)
    pipe.load_lora_weights(tmp_path, weight_name="lora.safetensors")
    found: dict[str, torch.Tensor] = {}
    for part in (p for p in parts if p != "vae"):
        found |= {
            f"{part}.{file_path(part, name)}": delta for name, delta in adapted_weights(getattr(pipe, part)).items()
        }
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(delta, wanted[name], atol=1e-5) for name, delta in found.items())
