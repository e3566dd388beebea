"""Converted LoRA files in stock diffusers: every layer has the strength, rank and DoRA scale of the source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline
from safetensors.torch import save_file
from transformers import CLIPTokenizer

from modules.families.parts.clip_vocabulary import clip_merges, clip_vocabulary
from modules.families.parts.lora_names import file_path
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.families.registry import published_model
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_types import DORA_SCALE
from tests.builders.adapter_forms import FORMS, change_of, lora_layers, tensors_in, with_dora, with_tucker
from tests.builders.single_files import build_parts, tiny_configs
from trainer.__main__ import main

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKROOM_CALLER_DIR", str(tmp_path))


def pipeline(model: str, configs: dict[str, Any]) -> Any:
    tokenizer = CLIPTokenizer(vocab=clip_vocabulary(), merges=clip_merges(), model_max_length=77)
    options: dict[str, Any] = {"tokenizer": tokenizer}
    options |= {"tokenizer_2": tokenizer} if model == "sdxl" else {"safety_checker": None, "feature_extractor": None}
    kind = StableDiffusionXLPipeline if model == "sdxl" else StableDiffusionPipeline
    return kind(**build_parts(configs), scheduler=DDIMScheduler.from_config(configs["scheduler"]), **options)


def loaded_changes(pipe: Any, part: str) -> dict[str, torch.Tensor]:
    """What each LoRA layer of a part adds to its weight before DoRA."""
    found = {}
    for name, layer in getattr(pipe, part).named_modules():
        if hasattr(layer, "lora_A") and len(layer.lora_A):
            [adapter] = layer.lora_A
            a, b = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
            found[file_path(part, name)] = (b.flatten(1) @ a.flatten(1)).detach().double() * layer.scaling[adapter]
    return found


def several_strengths(model: str, configs: dict[str, Any], *, alphas: tuple[float, ...]) -> list[AdapterLayer]:
    """Layers of several ranks and alphas."""
    layers = lora_layers(model, configs, ranks=(2, 3, 2, 4))
    return [AdapterLayer(x.part, x.path, x.factors, alphas[index % len(alphas)]) for index, x in enumerate(layers)]


@pytest.mark.daily(1)
@pytest.mark.parametrize("source", ["kohya, diffusers names", "kohya, SGM names", "ComfyUI", "OneTrainer's raw"])
@pytest.mark.parametrize("form", ["peft", "kohya"])
@pytest.mark.parametrize("model", ["sd1", "sdxl"])
def test_every_layer_has_its_strength(model: str, form: str, source: str, tmp_path: Path) -> None:
    configs = tiny_configs(model)
    # Of a kohya file diffusers 0.42 uses one alpha for all attention layers, so that form is tested with one.
    layers = several_strengths(model, configs, alphas=(1.0, 1.5, 1.0, 8.0, 1.0) if form == "peft" else (1.5,))
    metadata = {
        CONFIGS_KEY: json.dumps(configs),
        "modelspec.architecture": f"{published_model(model).architecture}/lora",
    }
    save_file(tensors_in(FORMS[source], layers, configs), tmp_path / "a.safetensors", metadata)
    assert main(["convert", "a.safetensors", "lora.safetensors", "--to", form]) == 0
    pipe = pipeline(model, configs)
    pipe.load_lora_weights(tmp_path, weight_name="lora.safetensors")
    for part in {layer.part for layer in layers}:
        wanted = {layer.path: change_of(layer) for layer in layers if layer.part == part}
        found = loaded_changes(pipe, part)
        assert found.keys() == wanted.keys()
        for path, change in wanted.items():
            torch.testing.assert_close(found[path], change, rtol=0, atol=1e-6)


@pytest.mark.full
def test_tucker_is_folded_and_dora_has_its_magnitudes(tmp_path: Path) -> None:
    configs = tiny_configs("sd1")
    loras = lora_layers("sd1", configs)
    for layers in (with_tucker(loras), with_dora(loras)):
        metadata = {CONFIGS_KEY: json.dumps(configs)}
        save_file(tensors_in(FORMS["kohya, lora_te"], layers, configs), tmp_path / "a.safetensors", metadata)
        assert main(["convert", "a.safetensors", "p.safetensors", "--to", "peft", "--overwrite"]) == 0
        pipe = pipeline("sd1", configs)
        pipe.load_lora_weights(tmp_path, weight_name="p.safetensors")
        for part in ("unet", "text_encoder"):
            found, theirs = loaded_changes(pipe, part), loaded_magnitudes(pipe, part)
            for layer in (x for x in layers if x.part == part):
                torch.testing.assert_close(found[layer.path], change_of(layer), rtol=0, atol=1e-5)
                if (scale := layer.factors.get(DORA_SCALE)) is not None:
                    assert torch.equal(theirs[layer.path].flatten(), scale.flatten())


def loaded_magnitudes(pipe: Any, part: str) -> dict[str, torch.Tensor]:
    """DoRA's magnitudes of each LoRA layer of a part."""
    found = {}
    for name, layer in getattr(pipe, part).named_modules():
        if hasattr(layer, "lora_magnitude_vector") and len(layer.lora_magnitude_vector):
            [magnitudes] = layer.lora_magnitude_vector.values()
            found[file_path(part, name)] = magnitudes.weight.detach()
    return found
