"""The files of Ideogram 4: folders, the names of layers in LoRA files, and files of one of the transformers.

The published checkpoints, ComfyUI's and ai-toolkit's have the queries, keys and values of a block in one matrix;
all other names are diffusers' (`_convert_non_diffusers_ideogram4_lora_to_diffusers`). Both transformers have the same
names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts.linear_layers import LinearLayer, layer_slots, targets_from, width_of
from modules.families.parts.single_file.slots import Slot, limit_layers, module_slots
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_denoiser, transformer_file
from modules.families.published import PublishedModel
from modules.formats import program_table as table

Config = Mapping[str, Any]
_NORMS = ("attention.norm_q", "attention.norm_k", "attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2")


def transformer_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield all linear layers of an `Ideogram4Transformer2DModel` of this config."""
    width, time, channels = width_of(config), int(config["adaln_dim"]), int(config["in_channels"])
    inner = int(config["intermediate_size"])
    yield LinearLayer.same("input_proj", (width, channels))
    yield LinearLayer.same("llm_cond_proj", (width, int(config["llm_features_dim"])))
    yield LinearLayer.same("t_embedding.mlp_in", (width, width))
    yield LinearLayer.same("t_embedding.mlp_out", (width, width))
    yield LinearLayer.same("adaln_proj", (time, width))
    yield LinearLayer.same("final_layer.linear", (channels, width))
    yield LinearLayer.same("final_layer.adaln_modulation", (width, time))
    for block in _blocks(config):
        for piece, name in enumerate(("to_q", "to_k", "to_v")):
            path = f"{block}.attention"
            yield LinearLayer(f"{path}.{name}", f"{path}.qkv", (width, width), piece, (1, 1, 1), bias=False)
        yield LinearLayer(f"{block}.attention.to_out.0", f"{block}.attention.o", (width, width), bias=False)
        for name, shape in (("w1", (inner, width)), ("w2", (width, inner)), ("w3", (inner, width))):
            yield LinearLayer.same(f"{block}.feed_forward.{name}", shape, bias=False)
        yield LinearLayer.same(f"{block}.adaln_modulation", (4 * width, time))


def _blocks(config: Config) -> Iterator[str]:
    return (f"layers.{index}" for index in range(int(config["num_layers"])))


def _slots(config: Config) -> Iterator[Slot]:
    yield from layer_slots(limit_layers(transformer_layers(config)))
    for name in ("llm_cond_norm", "embed_image_indicator"):
        yield from module_slots(name, name, bias=False)
    for block in limit_layers(_blocks(config)):
        for norm in _NORMS:
            yield from module_slots(f"{block}.{norm}", f"{block}.{norm}", bias=False)


TRANSFORMER_FILE = transformer_file(
    _slots,
    first="llm_cond_norm.",
    marks=(".llm_cond_proj.",),
    diffusers_marks=("layers.0.attention.to_q.",),
)


# What makes a model different from the published one.
_SHAPING = (
    *("num_layers", "num_attention_heads", "attention_head_dim", "intermediate_size", "adaln_dim"),
    *("llm_features_dim", "mrope_section"),
)
# diffusers was measured at toy size (2026-11-29); what ComfyUI loads is stated in threads about the model. Most names
# are the same in both layouts.
_MISSING = dict.fromkeys(("Forge", "diffusers 0.31", "sd-scripts"), table.NO_MODEL)
_ANSWERS: table.Row = {**table.UNMEASURED, **_MISSING, "ComfyUI": table.ALL, "diffusers": table.ALL}
_IN_BLOCKS: Mapping[table.Place, table.Answer] = {
    "": table.ALL,
    "outside": table.refuses("raises an error for layers outside the blocks"),
}
_MIXED = "kohya, SGM and diffusers names"
_KOHYA = table.none("ignores kohya's names of this model")
_NAMING_ROWS: Mapping[str, table.Row] = {
    **{name: {**_ANSWERS, "diffusers": _IN_BLOCKS} for name in ("ComfyUI, original names", "ComfyUI, diffusers names")},
    **{name: {**_ANSWERS, "diffusers": _KOHYA} for name in (table.SGM_NAMES, _MIXED, table.DIFFUSERS_NAMES)},
    "PEFT, denoiser": {**_ANSWERS, "ComfyUI": table.UNKNOWN},
}


MODEL = PublishedModel(
    name="ideogram4",
    label="Ideogram 4",
    family="ideogram4",
    architecture="ideogram-4",
    implementation="https://github.com/ideogram-oss/ideogram4",
    adapter_targets=targets_from(transformer_layers),
    repository="ideogram-ai/ideogram-4-fp8",
    pipelines={"": "Ideogram4Pipeline"},
    index={"prompt_enhancer_head": [None, None]},
    single_file=single_denoiser(TRANSFORMER_FILE, *_SHAPING),
    naming_rows=_NAMING_ROWS,
    extra_rows={"alpha in ComfyUI's names": {"diffusers": table.ALL}},
    weight_bytes=1,
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "ideogram4", "ideogram-4", "ideogram_4", "ideogram")
