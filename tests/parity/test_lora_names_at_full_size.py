"""The names of LoRA layers at the published sizes, on the meta device: no weight is read or created.

Other programs load 794 and 282 layers of SDXL's and SD 1.5's UNets. SDXL skips the last of CLIP-L's
twelve layers, which therefore cannot be trained.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from modules.adapters.protocol import target_layers
from modules.families.parts.files import ModelFiles
from modules.families.parts.lora_names import comfy_naming
from modules.families.parts.single_file.models import shipped_configs
from modules.families.registry import FAMILIES, published_model, published_models
from modules.families.sd import model as sd
from modules.families.sd.spec import SdSettings
from modules.families.sdxl import model as sdxl
from modules.families.sdxl.spec import SdxlSettings
from modules.settings.layer_filter import EVERYTHING
from tests.builders.models import tiny_vae

CLASSES = {"text_encoder": CLIPTextModel, "text_encoder_2": CLIPTextModelWithProjection}
COUNTS = {
    "sd1": {"unet": 282, "text_encoder": 72},
    "sd2_v": {"unet": 282, "text_encoder": 138},
    "sdxl": {"unet": 794, "text_encoder": 66, "text_encoder_2": 192},
}
NAMES = {
    "sd1": "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q",
    "sd2_v": "lora_te_text_model_encoder_layers_22_mlp_fc1",
    "sdxl": "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q",
}


def meta_family(model: str) -> Any:
    configs = shipped_configs(model)
    with torch.device("meta"):
        parts: dict[str, Any] = {"unet": UNet2DConditionModel.from_config(configs["unet"])}
        for name, kind in CLASSES.items():
            if name in configs:
                parts[name] = kind(CLIPTextConfig(**configs[name]))
    files = ModelFiles(model, {**parts, "vae": tiny_vae()}, configs["scheduler"], {})
    return sdxl.assemble(files, SdxlSettings()) if model == "sdxl" else sd.assemble(files, SdSettings())


@pytest.mark.parametrize("model", sorted(COUNTS))
def test_layers_are_named_as_in_published_files(model: str) -> None:
    family = meta_family(model)
    names: list[str] = []
    for part in FAMILIES[family.spec.name].trainable_parts:
        loaded = family.parts[part.name]
        layers = target_layers(loaded.module, part.role, layers=EVERYTHING, reaches=loaded.reaches)
        assert len(layers) == COUNTS[model][part.name]
        names += [family.lora_naming.kohya_name(part.name, layer) for layer in layers]
    assert len(set(names)) == sum(COUNTS[model].values())
    assert NAMES[model] in names
    assert not [n for n in names if not n.isidentifier()]


@pytest.mark.parametrize("model", [m.name for m in published_models()])
def test_each_of_comfyuis_names_leads_back_to_its_layer(model: str) -> None:
    record = published_model(model)
    configs = record.shipped_configs()
    targets, name_of = record.adapter_targets(configs), comfy_naming(model, configs)
    names = {name_of(t.part, t.path): (t.part, t.path) for t in (*targets.all, *targets.matrices)}
    assert len(names) == len(targets.all) + len(targets.matrices)
    for name, place in names.items():
        found = targets.find(name, {})
        assert found is not None, name
        assert (found.part, found.path) == place, name
