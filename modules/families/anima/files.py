"""The files of Anima: folders, the names of layers in LoRA files, and files of the transformer with the conditioner.

kohya's trainers and ComfyUI name the layers as the published checkpoint does, the conditioner's as `llm_adapter`;
diffusers' names have the prefixes `transformer.` and `text_conditioner.`. The published checkpoints have
Cosmos-Predict2's names (diffusers' `convert_cosmos_transformer_checkpoint_to_diffusers`) behind `net.`,
`model.diffusion_model.` or nothing, and the conditioner as `llm_adapter.` with the names that diffusers has, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.anima.spec import CONDITIONER
from modules.families.parts.linear_layers import LinearLayer, layer_slots, original_targets
from modules.families.parts.single_file.record import InnerPart, PartLayout, Shapes, SingleFile
from modules.families.parts.single_file.slots import Slot, limit_layers
from modules.families.parts.single_file.transformer_file import NO_COMFY_ALPHAS, files_of_one_model, transformer_file
from modules.families.published import Configs, PublishedModel
from modules.formats import program_table as table
from modules.formats.adapter_forms import Layout
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets

Shape = tuple[int, ...]
Config = Mapping[str, Any]
PREFIX = "net."
ADAPTER = "llm_adapter."
"""The prefix of the conditioner's tensors inside the transformer's."""
_IN_BLOCK = {
    "norm1.linear_1": "adaln_modulation_self_attn.1",
    "norm1.linear_2": "adaln_modulation_self_attn.2",
    "norm2.linear_1": "adaln_modulation_cross_attn.1",
    "norm2.linear_2": "adaln_modulation_cross_attn.2",
    "norm3.linear_1": "adaln_modulation_mlp.1",
    "norm3.linear_2": "adaln_modulation_mlp.2",
    "ff.net.0.proj": "mlp.layer1",
    "ff.net.2": "mlp.layer2",
}
_IN_ATTENTION = {
    "to_q": "q_proj",
    "to_k": "k_proj",
    "to_v": "v_proj",
    "to_out.0": "output_proj",
    "norm_q": "q_norm",
    "norm_k": "k_norm",
}
_ATTENTIONS = {"attn1": "self_attn", "attn2": "cross_attn"}
_ENDS = {
    "patch_embed.proj": "x_embedder.proj.1",
    "time_embed.t_embedder.linear_1": "t_embedder.1.linear_1",
    "time_embed.t_embedder.linear_2": "t_embedder.1.linear_2",
    "time_embed.norm": "t_embedding_norm",
    "norm_out.linear_1": "final_layer.adaln_modulation.1",
    "norm_out.linear_2": "final_layer.adaln_modulation.2",
    "proj_out": "final_layer.linear",
}
# What Cosmos-Predict2's checkpoints have besides the weights.
_UNUSED = (
    *(f"accum_{name}" for name in ("video_sample_counter", "image_sample_counter", "iteration", "train_in_hours")),
    *(f"pos_embedder.{name}" for name in ("seq", "dim_spatial_range", "dim_temporal_range")),
)


def transformer_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield each layer and norm of a `CosmosTransformer3DModel` of this config; none has a bias."""
    heads, head = int(config["num_attention_heads"]), int(config["attention_head_dim"])
    width, low = heads * head, int(config["adaln_lora_dim"])
    text, inner = int(config["text_embed_dim"]), int(width * float(config["mlp_ratio"]))
    patch = 4  # of 2 x 2 latents in one frame
    channels = int(config["in_channels"]) + bool(config["concat_padding_mask"])
    ends: dict[str, Shape] = {
        "patch_embed.proj": (width, patch * channels),
        "time_embed.t_embedder.linear_1": (width, width),
        "time_embed.t_embedder.linear_2": (3 * width, width),
        "time_embed.norm": (width,),
        "norm_out.linear_1": (low, width),
        "norm_out.linear_2": (2 * width, low),
        "proj_out": (patch * int(config["out_channels"]), width),
    }
    for path, shape in ends.items():
        yield LinearLayer(path, _ENDS[path], shape)
    for index in range(int(config["num_layers"])):
        ours, theirs = f"transformer_blocks.{index}", f"blocks.{index}"
        for attention, original in _ATTENTIONS.items():
            read = text if attention == "attn2" else width
            shapes = (width, width), (width, read), (width, read), (width, width), (head,), (head,)
            for (name, their_name), shape in zip(_IN_ATTENTION.items(), shapes, strict=True):
                yield LinearLayer(f"{ours}.{attention}.{name}", f"{theirs}.{original}.{their_name}", shape)
        for name, their_name in _IN_BLOCK.items():
            modulation = (low, width) if name.endswith("linear_1") else (3 * width, low)
            feed_forward = {"ff.net.0.proj": (inner, width), "ff.net.2": (width, inner)}
            yield LinearLayer(f"{ours}.{name}", f"{theirs}.{their_name}", feed_forward.get(name, modulation))


def conditioner_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield each layer, norm and embedding of an `AnimaTextConditioner` of this config."""
    width, target, source = (int(config[key]) for key in ("model_dim", "target_dim", "source_dim"))
    inner, head = int(width * float(config["mlp_ratio"])), width // int(config["num_attention_heads"])
    has_own, is_layer_norm = bool(config["use_self_attention"]), bool(config["use_layer_norm"])
    yield LinearLayer.same("embed", (int(config["target_vocab_size"]), target), bias=False)
    if width != target:
        yield LinearLayer.same("in_proj", (width, target))
    for index in range(int(config["num_layers"])):
        block = f"blocks.{index}"
        for attention, read in (("self_attn", width), ("cross_attn", source)) if has_own else (("cross_attn", source),):
            yield LinearLayer.same(f"{block}.norm_{attention}", (width,), bias=is_layer_norm)
            for name, shape in (
                ("q", (width, width)),
                ("k", (width, read)),
                ("v", (width, read)),
                ("o", (width, width)),
            ):
                yield LinearLayer.same(f"{block}.{attention}.{name}_proj", shape, bias=False)
            for name in ("q_norm", "k_norm"):
                yield LinearLayer.same(f"{block}.{attention}.{name}", (head,), bias=False)
        yield LinearLayer.same(f"{block}.norm_mlp", (width,), bias=is_layer_norm)
        yield LinearLayer.same(f"{block}.mlp.0", (inner, width))
        yield LinearLayer.same(f"{block}.mlp.2", (width, inner))
    yield LinearLayer.same("out_proj", (target, width))
    yield LinearLayer.same("norm", (target,), bias=False)


def _slots(config: Config) -> Iterator[Slot]:
    return layer_slots(transformer_layers(config), has_bias=False)


def conditioner_layout(config: Config) -> PartLayout:
    """Return the layout of a text conditioner in the transformer's file."""
    return PartLayout(CONDITIONER, f"{PREFIX}{ADAPTER}", tuple(limit_layers(layer_slots(conditioner_layers(config)))))


def _configs_of(configs: Configs, shapes: Shapes) -> Configs:
    """Return the published configs with the depth of a file's transformer: Anima's other sizes have more blocks."""
    start = f"{PREFIX}blocks."
    numbers = {name.removeprefix(start).partition(".")[0] for name in shapes if name.startswith(start)}
    count = 1 + max((int(number) for number in numbers if number.isdecimal() and len(number) < 5), default=-1)
    return {**configs, "transformer": {**configs["transformer"], "num_layers": count}} if count else configs


def fill_buffers(conditioner: Any) -> None:
    """Make the buffer that files do not have: the frequencies of the rotary embedding."""
    config = conditioner.config
    made = type(conditioner.rotary_emb)(config.model_dim // config.num_attention_heads)
    conditioner.rotary_emb.inv_freq = made.inv_freq


TRANSFORMER_FILE = transformer_file(
    _slots,
    first="blocks.0.adaln_modulation_cross_attn.",
    marks=(".adaln_modulation_cross_attn.1.", ".transformer_blocks.0.norm3.linear_1."),
    diffusers_marks=("transformer_blocks.0.norm3.linear_1.",),
    unused=_UNUSED,
    prefix=PREFIX,
    inside={CONDITIONER: InnerPart(ADAPTER, conditioner_layout)},
)
SINGLE_FILE = SingleFile(
    parts=lambda configs: (TRANSFORMER_FILE.layout(configs["transformer"]), conditioner_layout(configs[CONDITIONER])),
    original_names=TRANSFORMER_FILE.original_names,
    configs_of=_configs_of,
    shaping={
        "transformer": (
            *("in_channels", "num_layers", "num_attention_heads", "attention_head_dim", "mlp_ratio"),
            *("text_embed_dim", "adaln_lora_dim", "rope_scale", "concat_padding_mask", "extra_pos_embed_type"),
        ),
        CONDITIONER: (
            *("source_dim", "target_dim", "model_dim", "num_layers", "num_attention_heads", "mlp_ratio"),
            *("target_vocab_size", "use_self_attention", "use_layer_norm", "min_sequence_length"),
        ),
    },
)


# diffusers was measured at toy size (2026-11-28); ComfyUI's are the names in its maps.
_ANSWERS: table.Row = {
    **table.UNMEASURED,
    "ComfyUI": table.ALL,
    "diffusers": table.ALL,
    "diffusers 0.31": table.NO_MODEL,
}
_NAMING_ROWS: Mapping[str, table.Row] = {
    table.SGM_NAMES: {
        **_ANSWERS,
        "diffusers": table.none("does not map kohya's names of this model"),
        "sd-scripts": table.ALL,
    },
    "ComfyUI, original names": _ANSWERS,
    "PEFT, denoiser": {**_ANSWERS, "ComfyUI": table.none("does not map diffusers' names of this model")},
    "PEFT, denoiser without its prefix": {**table.UNMEASURED, "diffusers": table.NEEDS_PREFIX},
    "other factors in PEFT names": {**table.UNMEASURED, "diffusers": table.WRONG_FACTORS},
}


def _layers(configs: Configs) -> Iterator[AdapterTarget]:
    """Yield the linear layers of the transformer and of the conditioner."""
    layers = (layer for layer in transformer_layers(configs["transformer"]) if len(layer.shape) == 2)
    yield from original_targets(layers)[0]
    for layer in conditioner_layers(configs[CONDITIONER]):
        if len(layer.shape) == 2 and (path := layer.path) != "embed":
            named: dict[Layout, str] = {"with part": f"{CONDITIONER}.{path}", "original": f"{ADAPTER}{path}"}
            yield AdapterTarget(CONDITIONER, path, layer.shape, named, "lora_unet_", "original")


MODEL = PublishedModel(
    name="anima",
    label="Anima",
    family="anima",
    architecture="anima",
    implementation="https://huggingface.co/circlestone-labs/Anima",
    adapter_targets=lambda configs: AdapterTargets.of(limit_layers(_layers(configs))),
    repository="circlestone-labs/Anima-Base-v1.0-Diffusers",
    pipelines={"": "AnimaModularPipeline"},
    blocks="AnimaAutoBlocks",
    single_file=SINGLE_FILE,
    naming_rows=_NAMING_ROWS,
    extra_rows=NO_COMFY_ALPHAS,
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "anima")
