"""The original layout at full size: every tensor of the published models has its place, and no place is empty."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch

from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.models import layouts, shipped_configs
from modules.families.parts.single_file.moves import from_original, to_original
from modules.families.parts.single_file.sizes import configs_to_bring
from modules.families.parts.single_file.write import CheckpointTraits, file_state, original_tensors
from modules.families.parts.unet_clip_file.unet import unet_layers
from modules.families.registry import published_models
from modules.formats.lazy_tensors import LazyTensor, lazy_state
from tests.builders.single_files import CLASSES, model_class, part_names

MODELS = sorted(m.name for m in published_models() if "unet" in m.shipped_configs())


@cache
def empty(model: str, part: str) -> Any:
    """A part of a published model, without memory behind it; nobody may change it."""
    return empty_part(CLASSES[part], shipped_configs(model)[part])


def meta_states(model: str) -> dict[str, dict[str, LazyTensor]]:
    """The published model's tensors, without memory behind them."""
    return {
        name: file_state(model_class(model, name), lazy_state(empty(model, name).state_dict()))
        for name in part_names(shipped_configs(model))
    }


def shapes(state: Mapping[str, LazyTensor]) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in state.items()}


@pytest.mark.parametrize("model", MODELS)
def test_every_tensor_of_the_published_model_has_one_place_and_comes_back(model: str) -> None:
    states, configs = meta_states(model), shipped_configs(model)
    for name, layout in layouts(model, configs).items():
        assert {s.key for s in layout.slots} == states[name].keys()
        assert len({s.key for s in layout.slots}) == len(layout.slots)
        original = to_original(layout.slots, states[name])
        assert shapes(from_original(layout.slots, original)) == shapes(states[name])
        # What is made has the shape that was announced, both ways.
        for made in (original, from_original(layout.slots, original)):
            assert all(tuple(t.make().shape) == t.shape for t in made.values())


@pytest.mark.parametrize(("model", "count"), [("sd1", 1131), ("sdxl", 2515)])
def test_the_published_files_have_as_many_tensors(model: str, count: int) -> None:
    """v1-5-pruned-emaonly.safetensors and sd_xl_base_1.0.safetensors."""
    traits = CheckpointTraits(model)
    assert len(original_tensors(meta_states(model), shipped_configs(model), traits)) == count


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "sd1",
            {
                "model.diffusion_model.input_blocks.0.0.weight": (320, 4, 3, 3),
                "model.diffusion_model.input_blocks.1.1.proj_in.weight": (320, 320, 1, 1),
                "model.diffusion_model.output_blocks.2.1.conv.weight": (1280, 1280, 3, 3),
                "model.diffusion_model.output_blocks.8.2.conv.bias": (640,),
                "model.diffusion_model.output_blocks.11.1.transformer_blocks.0.attn2.to_k.weight": (320, 768),
                "first_stage_model.decoder.mid.attn_1.q.weight": (512, 512, 1, 1),
                "first_stage_model.encoder.down.2.block.0.nin_shortcut.weight": (512, 256, 1, 1),
                "first_stage_model.decoder.up.0.block.0.nin_shortcut.weight": (128, 256, 1, 1),
                "cond_stage_model.transformer.text_model.embeddings.position_ids": (1, 77),
            },
        ),
        (
            "sd2_v",
            {
                "model.diffusion_model.input_blocks.2.1.transformer_blocks.0.attn2.to_k.weight": (320, 1024),
                "model.diffusion_model.input_blocks.1.1.proj_in.weight": (320, 320),
                "cond_stage_model.model.transformer.resblocks.23.attn.in_proj_weight": (3072, 1024),
                "cond_stage_model.model.positional_embedding": (77, 1024),
                "cond_stage_model.model.text_projection": (1024, 1024),
            },
        ),
        (
            "sdxl",
            {
                "model.diffusion_model.label_emb.0.0.weight": (1280, 2816),
                "model.diffusion_model.input_blocks.4.1.transformer_blocks.1.attn1.to_q.weight": (640, 640),
                "model.diffusion_model.middle_block.1.transformer_blocks.9.ff.net.0.proj.weight": (10240, 1280),
                "model.diffusion_model.output_blocks.2.2.conv.weight": (1280, 1280, 3, 3),
                "conditioner.embedders.0.transformer.text_model.encoder.layers.11.mlp.fc1.weight": (3072, 768),
                "conditioner.embedders.1.model.transformer.resblocks.31.attn.in_proj_bias": (3840,),
                "conditioner.embedders.1.model.text_projection": (1280, 1280),
                "conditioner.embedders.1.model.logit_scale": (),
            },
        ),
    ],
)
def test_known_tensors_have_their_published_names_and_shapes(model: str, expected: dict[str, Any]) -> None:
    tensors = shapes(original_tensors(meta_states(model), shipped_configs(model), CheckpointTraits(model)))
    assert {name: tensors.get(name) for name in expected} == expected


@pytest.mark.parametrize(("model", "count"), [("sd1", 282), ("sd2", 282), ("sdxl", 794)])
def test_all_layers_for_adapters_exist(model: str, count: int) -> None:
    config = shipped_configs(model)["unet"]
    layers = {layer.path for layer in unet_layers(config) if layer.sort != "norm"}
    module = empty(model, "unet")
    wanted = {n for n, m in module.named_modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv2d)}
    assert layers == wanted
    assert len(layers) == count


@pytest.mark.parametrize("model", ["sd1", "sd2", "sdxl"])
def test_the_original_unet_numbers_its_blocks_as_openaimodel_does(model: str) -> None:
    """The entries of input_blocks and output_blocks, built up the way `UNetModel.__init__` builds them."""
    config = shipped_configs(model)["unet"]
    levels = range(len(config["block_out_channels"]))
    attends = [kind.startswith("CrossAttn") for kind in config["down_block_types"]]
    inputs: list[set[str]] = [{"0"}]
    for level in levels:
        inputs += [{"0", "1"} if attends[level] else {"0"} for _ in range(config["layers_per_block"])]
        inputs += [{"0"}] if level < levels[-1] else []
    outputs: list[set[str]] = []
    for level in reversed(levels):
        for index in range(config["layers_per_block"] + 1):
            members = 1 + attends[level] + (level > 0 and index == config["layers_per_block"])
            outputs.append({str(m) for m in range(members)})
    for name, blocks in (("input_blocks", inputs), ("output_blocks", outputs)):
        found: dict[int, set[str]] = {}
        for layer in unet_layers(config):
            if layer.original.startswith(name):
                _, entry, member, *_ = layer.original.split(".")
                found.setdefault(int(entry), set()).add(member)
        assert [found[i] for i in sorted(found)] == blocks


def loaded_configs(model: str) -> dict[str, dict[str, Any]]:
    """The configs as loaded parts have them: with everything that the libraries add where a file is silent."""
    shipped = shipped_configs(model)
    modules = {part: empty(model, part) for part in part_names(shipped)}
    return {
        part: module.config.to_dict() if hasattr(module.config, "to_dict") else dict(module.config)
        for part, module in modules.items()
    } | {"scheduler": shipped["scheduler"]}


@pytest.mark.parametrize("model", MODELS)
def test_a_published_model_needs_no_configs_in_its_file(model: str) -> None:
    assert configs_to_bring(model, loaded_configs(model)) == ""


@pytest.mark.parametrize("model", ["sd1", "sd2", "sdxl"])
def test_a_model_of_another_size_must_contain_its_configs(model: str) -> None:
    for part, name, value in (
        ("unet", "block_out_channels", (32, 64)),
        ("unet", "transformer_layers_per_block", 3),
        ("vae", "scaling_factor", 0.5),
        ("text_encoder", "hidden_size", 99),
    ):
        configs = loaded_configs(model)
        configs[part] |= {name: value}
        assert name in configs_to_bring(model, configs)


def test_a_projection_that_is_not_there_has_no_size() -> None:
    configs = loaded_configs("sd1")
    configs["text_encoder"]["projection_dim"] = 512
    assert configs_to_bring("sd1", configs) == ""
