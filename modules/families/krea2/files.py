"""The files of Krea 2: folders, the names of layers in LoRA files, and files of the transformer alone.

kohya's trainers and ai-toolkit name the layers as the published checkpoints do, and so does ComfyUI; diffusers' names
have the prefix `transformer.`. These checkpoints have the same tensors as diffusers under other names, but for the
modulation tables of the blocks: their six rows are one after the other (diffusers'
`convert_krea2_transformer_checkpoint_to_diffusers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts.linear_layers import LinearLayer, layer_slots, targets_from, width_of
from modules.families.parts.single_file import transformer_file
from modules.families.parts.single_file.slots import Slot
from modules.families.published import PublishedModel
from modules.formats import program_table as table

Config = Mapping[str, Any]
_ATTENTION = {"to_q": "wq", "to_k": "wk", "to_v": "wv", "to_out.0": "wo", "to_gate": "gate"}
_NORMS = {
    "norm1.weight": "prenorm.scale",
    "norm2.weight": "postnorm.scale",
    "attn.norm_q.weight": "attn.qknorm.qnorm.scale",
    "attn.norm_k.weight": "attn.qknorm.knorm.scale",
}
_TENSORS = {
    "txt_in.norm.weight": "txtmlp.0.scale",
    "final_layer.norm.weight": "last.norm.scale",
    "final_layer.scale_shift_table": "last.modulation.lin",
}
_MODULATIONS = 6


def transformer_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `Krea2Transformer2DModel` of this config."""
    width, text, channels = width_of(config), int(config["text_hidden_dim"]), int(config["in_channels"])
    yield LinearLayer("img_in", "first", (width, channels))
    yield LinearLayer("time_embed.linear_1", "tmlp.0", (width, int(config["timestep_embed_dim"])))
    yield LinearLayer("time_embed.linear_2", "tmlp.2", (width, width))
    yield LinearLayer("time_mod_proj", "tproj.1", (_MODULATIONS * width, width))
    yield LinearLayer("text_fusion.projector", "txtfusion.projector", (1, int(config["num_text_layers"])), bias=False)
    yield LinearLayer("txt_in.linear_1", "txtmlp.1", (width, text))
    yield LinearLayer("txt_in.linear_2", "txtmlp.3", (width, width))
    yield LinearLayer("final_layer.linear", "last.linear", (channels, width))
    head = int(config["attention_head_dim"])
    keys = int(config["num_key_value_heads"] or config["num_attention_heads"]) * head
    for ours, theirs in _blocks(config):
        yield from _block_layers(ours, theirs, width, keys, int(config["intermediate_size"]))
    head = text // int(config["text_num_attention_heads"])
    keys = int(config["text_num_key_value_heads"] or config["text_num_attention_heads"]) * head
    for ours, theirs in _text_blocks(config):
        yield from _block_layers(ours, theirs, text, keys, int(config["text_intermediate_size"]))


def _blocks(config: Config) -> Iterator[tuple[str, str]]:
    for index in range(int(config["num_layers"])):
        yield f"transformer_blocks.{index}", f"blocks.{index}"


def _text_blocks(config: Config) -> Iterator[tuple[str, str]]:
    for group in ("layerwise", "refiner"):
        for index in range(int(config[f"num_{group}_text_blocks"])):
            yield f"text_fusion.{group}_blocks.{index}", f"txtfusion.{group}_blocks.{index}"


def _block_layers(ours: str, theirs: str, width: int, keys: int, inner: int) -> Iterator[LinearLayer]:
    """Yield the layers of a block: `keys` is the width of its keys and values, which several queries share."""
    for name, original in _ATTENTION.items():
        rows = keys if name in ("to_k", "to_v") else width
        yield LinearLayer(f"{ours}.attn.{name}", f"{theirs}.attn.{original}", (rows, width), bias=False)
    for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
        yield LinearLayer(f"{ours}.ff.{name}", f"{theirs}.mlp.{name}", shape, bias=False)


def _slots(config: Config) -> Iterator[Slot]:
    yield from layer_slots(transformer_layers(config))
    for ours, theirs in _TENSORS.items():
        yield Slot(ours, theirs)
    for ours, theirs in (*_blocks(config), *_text_blocks(config)):
        for norm, original in _NORMS.items():
            yield Slot(f"{ours}.{norm}", f"{theirs}.{original}")
    for ours, theirs in _blocks(config):
        yield Slot(f"{ours}.scale_shift_table", f"{theirs}.mod.lin", joined_rows=_MODULATIONS)


TRANSFORMER_FILE = transformer_file.transformer_file(
    _slots,
    first="txtfusion.projector.",
    marks=(".txtfusion.projector.", ".text_fusion.projector."),
    diffusers_marks=("text_fusion.",),
)


# What makes a model different from the published one.
_SHAPING = (
    *("num_layers", "num_attention_heads", "num_key_value_heads", "attention_head_dim", "intermediate_size"),
    *("text_hidden_dim", "num_text_layers", "text_num_attention_heads", "text_intermediate_size"),
    *("num_layerwise_text_blocks", "num_refiner_text_blocks", "timestep_embed_dim", "axes_dims_rope"),
)
# diffusers was measured at toy size (2026-11-28); ComfyUI's are the names in its maps.
_MISSING = dict.fromkeys(("Forge", "diffusers 0.31", "sd-scripts"), table.NO_MODEL)
_ANSWERS: table.Row = {**table.UNMEASURED, **_MISSING, "ComfyUI": table.ALL, "diffusers": table.ALL}
_KOHYA = table.none("ignores kohya's names of this model")
_NAMING_ROWS: Mapping[str, table.Row] = {
    "ComfyUI, original names": _ANSWERS,
    "PEFT, denoiser": _ANSWERS,
    table.SGM_NAMES: {**_ANSWERS, "diffusers": _KOHYA},
    table.DIFFUSERS_NAMES: {
        **_ANSWERS,
        "ComfyUI": table.none("does not know diffusers' names in this form"),
        "diffusers": _KOHYA,
    },
    "ComfyUI, diffusers names": {
        **_ANSWERS,
        "diffusers": table.refuses("raises an error: it expects the names of ComfyUI's checkpoint"),
    },
    "SimpleTuner": {**_ANSWERS, "diffusers": table.UNKNOWN},
    "PEFT, denoiser without its prefix": {**_ANSWERS, "diffusers": table.NEEDS_PREFIX},
    "other factors in PEFT names": {**_ANSWERS, "diffusers": table.WRONG_FACTORS},
}


MODEL = PublishedModel(
    name="krea2",
    label="Krea 2",
    family="krea2",
    architecture="krea2",
    implementation="https://github.com/krea-ai/krea-2",
    adapter_targets=targets_from(transformer_layers),
    repository="krea/Krea-2-Raw",
    pipelines={"": "Krea2Pipeline"},
    index={
        "text_encoder_select_layers": [2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35],
        "is_distilled": False,
        "patch_size": 2,
    },
    single_file=transformer_file.single_denoiser(TRANSFORMER_FILE, *_SHAPING),
    naming_rows=_NAMING_ROWS,
    extra_rows=transformer_file.NO_COMFY_ALPHAS,
)
FILES = transformer_file.files_of_one_model(MODEL, TRANSFORMER_FILE, "krea")
