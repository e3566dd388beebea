"""The files of Lumina-Image 2.0: folders, the names of layers in LoRA files, and files of the transformer alone.

ComfyUI and sd-scripts name the layers as the published checkpoint does, with the projections of queries, keys and
values in one matrix of unequal parts: three heads share their keys and values (diffusers'
`convert_lumina2_to_diffusers`). diffusers' names have the prefix `transformer.`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from modules.families.parts.linear_layers import LinearLayer, embedding_layers, layer_slots, targets_from
from modules.families.parts.single_file.slots import Slot, limit_layers, module_slots
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_denoiser, transformer_file
from modules.families.published import PublishedModel
from modules.formats.program_table import ALL, NO_MODEL, SGM_NAMES, UNMEASURED, Row, none, refuses

Config = Mapping[str, Any]
_EMBEDDED, _MAX_EMBEDDED = 256, 1024  # the channels of the time before and, at most, after its embedding
_TIME_AND_TEXT = "time_caption_embed"
_NORMS = {"norm2": "attention_norm2", "ffn_norm1": "ffn_norm1", "ffn_norm2": "ffn_norm2"}


def transformer_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `Lumina2Transformer2DModel` of this config."""
    width, channels = int(config["hidden_size"]), int(config["in_channels"])
    time, patch = min(width, _MAX_EMBEDDED), int(config["patch_size"]) ** 2
    output = patch * int(config["out_channels"] or channels)
    yield LinearLayer("x_embedder", "x_embedder", (width, patch * channels))
    yield from embedding_layers(f"{_TIME_AND_TEXT}.timestep_embedder", "t_embedder", _EMBEDDED, time)
    yield LinearLayer(f"{_TIME_AND_TEXT}.caption_embedder.1", "cap_embedder.1", (width, int(config["cap_feat_dim"])))
    for block in limit_layers(_blocks(config)):
        yield from _block(block, config)
        if _is_modulated(block):
            yield LinearLayer(f"{block}.norm1.linear", f"{block}.adaLN_modulation.1", (4 * width, time))
    yield LinearLayer("norm_out.linear_1", "final_layer.adaLN_modulation.1", (width, time))
    yield LinearLayer("norm_out.linear_2", "final_layer.linear", (output, width))


def _blocks(config: Config) -> Iterator[str]:
    refiners = int(config["num_refiner_layers"])
    for group, count in (("noise_refiner", refiners), ("context_refiner", refiners), ("layers", config["num_layers"])):
        yield from (f"{group}.{index}" for index in range(int(count)))


def _is_modulated(block: str) -> bool:
    return not block.startswith("context_refiner.")


def _block(block: str, config: Config) -> Iterator[LinearLayer]:
    """Yield the layers of a block without its modulation; those that share a matrix follow each other."""
    width, heads, kv_heads = (int(config[key]) for key in ("hidden_size", "num_attention_heads", "num_kv_heads"))
    shares = (heads, kv_heads, kv_heads)
    for piece, (name, share) in enumerate(zip("qkv", shares, strict=True)):
        shape = (width // heads * share, width)
        yield LinearLayer(f"{block}.attn.to_{name}", f"{block}.attention.qkv", shape, piece, shares, bias=False)
    yield LinearLayer(f"{block}.attn.to_out.0", f"{block}.attention.out", (width, width), bias=False)
    step = int(config["multiple_of"])
    inner = step * ceil(int(float(config.get("ffn_dim_multiplier") or 1) * 4 * width) / step)
    for index, shape in enumerate(((inner, width), (width, inner), (inner, width)), start=1):
        path = f"{block}.feed_forward"
        yield LinearLayer(f"{path}.linear_{index}", f"{path}.w{index}", shape, bias=False)


def _slots(config: Config) -> Iterator[Slot]:
    yield from layer_slots(transformer_layers(config))
    yield Slot(f"{_TIME_AND_TEXT}.caption_embedder.0.weight", "cap_embedder.0.weight")
    for block in limit_layers(_blocks(config)):
        first = "norm1.norm" if _is_modulated(block) else "norm1"
        for ours, theirs in {first: "attention_norm1", **_NORMS}.items():
            yield from module_slots(f"{block}.{ours}", f"{block}.{theirs}", bias=False)
        for name in "qk":
            yield from module_slots(f"{block}.attn.norm_{name}", f"{block}.attention.{name}_norm", bias=False)


TRANSFORMER_FILE = transformer_file(
    _slots,
    first="noise_refiner.0.",
    marks=(".layers.0.adaLN_modulation.1.", ".time_caption_embed."),  # Z-Image has most of the other names, too
    diffusers_marks=("time_caption_embed.",),
    unused=("norm_final.weight",),
)


# What makes a model different from the published one; `axes_lens` are the lengths of tables alone.
_SHAPING = (
    *("in_channels", "hidden_size", "num_layers", "num_refiner_layers", "num_attention_heads", "num_kv_heads"),
    *("multiple_of", "ffn_dim_multiplier", "cap_feat_dim", "axes_dim_rope"),
)
_ANSWERS: Row = {**UNMEASURED, "diffusers 0.31": NO_MODEL}
# diffusers was measured at toy size (2026-11-29); ComfyUI's are the names in its maps, sd-scripts' its own files.
_NAMING_ROWS: Mapping[str, Row] = {
    SGM_NAMES: {
        **_ANSWERS,
        "ComfyUI": ALL,
        "sd-scripts": ALL,
        "diffusers": none("its pipeline of Lumina 2 does not read kohya's names"),
    },
    "ComfyUI, original names": {
        **_ANSWERS,
        "ComfyUI": ALL,
        "diffusers": refuses("raises an error where a LoRA leaves out a layer of any block"),
    },
    "PEFT, denoiser": {**_ANSWERS, "diffusers": ALL, "ComfyUI": none("does not map diffusers' names of this model")},
}


MODEL = PublishedModel(
    name="lumina2",
    label="Lumina 2",
    family="lumina2",
    architecture="lumina-2",
    kohya_version="lumina",
    implementation="https://github.com/Alpha-VLLM/Lumina-Image-2.0",
    adapter_targets=targets_from(transformer_layers),
    repository="Alpha-VLLM/Lumina-Image-2.0",
    pipelines={"": "Lumina2Pipeline"},
    single_file=single_denoiser(TRANSFORMER_FILE, *_SHAPING),
    naming_rows=_NAMING_ROWS,
)
_OLDER_PIPELINE = "Lumina2Text2ImgPipeline"  # in the published folder
_FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "lumina")
FILES = replace(_FILES, pipelines={**_FILES.pipelines, _OLDER_PIPELINE: ""})
