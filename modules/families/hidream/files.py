"""The files of HiDream I1: folders, the names of layers in LoRA files, and files of the transformer alone.

The published checkpoint and ComfyUI name the layers as diffusers does, so adapter files differ in
prefixes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts.linear_layers import LinearLayer, diffusers_targets_from, layer_slots, width_of
from modules.families.parts.single_file import transformer_file
from modules.families.parts.single_file.slots import Slot, limit_layers, module_slots
from modules.families.published import PublishedModel
from modules.formats import program_table as table

Config = Mapping[str, Any]
_EMBEDDED_TIME = 256  # the channels of an embedded timestep, in diffusers' class
_MULTIPLE = 256  # of the inner width of experts, there
_IMAGE, _TEXT = ("to_q", "to_k", "to_v", "to_out"), ("to_q_t", "to_k_t", "to_v_t", "to_out_t")


def transformer_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `HiDreamImageTransformer2DModel` of this config.

    Raises ValueError if the config describes more layers than any model has.
    """
    width, patch = width_of(config), int(config["patch_size"]) ** 2
    inputs = {
        "t_embedder.timestep_embedder": _EMBEDDED_TIME,
        "p_embedder.pooled_embedder": int(config["text_emb_dim"]),
    }
    for path, columns in inputs.items():
        yield LinearLayer.same(f"{path}.linear_1", (width, columns))
        yield LinearLayer.same(f"{path}.linear_2", (width, width))
    yield LinearLayer.same("x_embedder.proj", (width, patch * int(config["in_channels"])))
    of_t5, of_llama = (int(channels) for channels in config["caption_channels"])
    blocks = list(limit_layers(_blocks(config)))
    for index in range(len(blocks) + 1):
        columns = of_llama if index < len(blocks) else of_t5
        yield LinearLayer.same(f"caption_projection.{index}.linear", (width, columns), bias=False)
    for block in blocks:
        yield from _layers_of_block(config, block)
    yield LinearLayer.same("final_layer.adaLN_modulation.1", (2 * width, width))
    yield LinearLayer.same(
        "final_layer.linear", (patch * int(config.get("out_channels") or config["in_channels"]), width)
    )


def _layers_of_block(config: Config, block: str) -> Iterator[LinearLayer]:
    width, is_double = width_of(config), block.startswith("double")
    yield LinearLayer.same(f"{block}.adaLN_modulation.1", ((12 if is_double else 6) * width, width))
    for name in (*_IMAGE, *_TEXT) if is_double else _IMAGE:
        yield LinearLayer.same(f"{block}.attn1.{name}", (width, width))
    num_experts = int(config["num_routed_experts"])
    parts = {"ff_i": 4 * width} if num_experts == 0 else {"ff_i.shared_experts": 2 * width}
    parts |= {f"ff_i.experts.{expert}": 4 * width for expert in range(num_experts)}
    for part, hidden in {**parts, **({"ff_t": 4 * width} if is_double else {})}.items():
        inner = -(-(2 * hidden // 3) // _MULTIPLE) * _MULTIPLE
        for name, shape in (("w1", (inner, width)), ("w2", (width, inner)), ("w3", (inner, width))):
            yield LinearLayer.same(f"{block}.{part}.{name}", shape, bias=False)


def _blocks(config: Config) -> Iterator[str]:
    for group, key in (("double_stream_blocks", "num_layers"), ("single_stream_blocks", "num_single_layers")):
        yield from (f"{group}.{index}.block" for index in range(int(config[key])))


def _slots(config: Config) -> Iterator[Slot]:
    yield from layer_slots(transformer_layers(config))
    for block in _blocks(config):
        if int(config["num_routed_experts"]) > 0:
            yield from module_slots(f"{block}.ff_i.gate", f"{block}.ff_i.gate", bias=False)
        for end in ("", "_t") if block.startswith("double") else ("",):
            for norm in (f"{block}.attn1.q_rms_norm{end}", f"{block}.attn1.k_rms_norm{end}"):
                yield from module_slots(norm, norm, bias=False)


TRANSFORMER_FILE = transformer_file.transformer_file(
    _slots,
    first="double_stream_blocks.0.block.",
    marks=(".double_stream_blocks.0.block.",),
    diffusers_marks=(),
)


# What makes a model different from the published one.
_SHAPING = (
    *("num_layers", "num_single_layers", "num_attention_heads", "attention_head_dim", "caption_channels"),
    *("text_emb_dim", "num_routed_experts", "num_activated_experts", "axes_dims_rope", "llama_layers"),
)

# diffusers was measured at toy size (2026-11-29); ComfyUI's are the names in its maps.
_NOT_KOHYA = table.none("does not know kohya's names of this model")
_NAMING_ROWS: Mapping[str, table.Row] = {
    **dict.fromkeys(("PEFT, denoiser", "ComfyUI, diffusers names"), table.COMFY_AND_DIFFUSERS),
    **{name: {**table.COMFY_AND_DIFFUSERS, "diffusers": _NOT_KOHYA} for name in (table.DIFFUSERS_NAMES, "SimpleTuner")},
}


MODEL = PublishedModel(
    name="hidream_i1",
    label="HiDream I1",
    family="hidream",
    architecture="hidream-i1",
    implementation="https://github.com/HiDream-ai/HiDream-I1",
    adapter_targets=diffusers_targets_from(transformer_layers),
    repository="HiDream-ai/HiDream-I1-Full",
    pipelines={"": "HiDreamImagePipeline"},
    single_file=transformer_file.single_denoiser(TRANSFORMER_FILE, *_SHAPING),
    naming_rows=_NAMING_ROWS,
    extra_rows=transformer_file.NO_COMFY_ALPHAS,
)
FILES = transformer_file.files_of_one_model(MODEL, TRANSFORMER_FILE, "hidream-i1", "hidream_i1", "hidream")
