"""The files of FLUX.3: folders, the names of layers in LoRA files, and files of the transformer alone.

The published checkpoints have the same tensors as diffusers under other names, and the two halves of the last
modulation in the other order (diffusers' `convert_flux3_transformer_checkpoint_to_diffusers`). LoRA files name the
layers as these checkpoints do, behind `diffusion_model.`, or as diffusers does behind `transformer.`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from modules.families.parts.linear_layers import LinearLayer, embedding_layers, layer_slots, targets_from, width_of
from modules.families.parts.single_file import transformer_file
from modules.families.parts.single_file.denoiser_file import config_in_file
from modules.families.parts.single_file.record import Shapes
from modules.families.parts.single_file.slots import Slot
from modules.families.published import Configs, PublishedModel
from modules.formats import program_table as table

Config = Mapping[str, Any]
_MODULATIONS = "early_stream_modulations"
_STREAMS = ("image", "image_cond")
_ATTENTION = {"attn.to_q": "q_proj", "attn.to_k": "k_proj", "attn.to_v": "v_proj", "attn.to_out.0": "attn_out"}
_NORMS = {"attn.norm_q.weight": "norm.query_norm.scale", "attn.norm_k.weight": "norm.key_norm.scale"}


def transformer_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `Flux3Transformer2DModel` of this config."""
    width, embedded = width_of(config), int(config["timestep_channels"])
    times = {"timestep_embedder": "time_in"}
    if config["flow_map"]:  # of the noise level that a step of the distilled model jumps to
        times["target_timestep_embedder"] = "ref_time_in"
    for ours, theirs in times.items():
        yield from embedding_layers(ours, theirs, embedded, width, ("in_layer", "out_layer"))
    for modulations in (_MODULATIONS, "single_stream_modulations"):
        for stream in (*_STREAMS, "txt"):
            yield LinearLayer(f"{modulations}.{stream}.linear", f"{modulations}.{stream}.lin", (3 * width, width))
    for stream, channels in zip(_STREAMS, ("in_channels", "cond_in_channels"), strict=True):
        yield LinearLayer(f"x_embedders.{stream}", f"emb_in.{stream}", (width, int(config[channels])))
    yield LinearLayer("context_embedder", "txt_in", (width, int(config["joint_attention_dim"])))
    inner = int(width * float(config["mlp_ratio"]))
    for ours, theirs in _blocks(config):
        for path, original in _ATTENTION.items():
            yield LinearLayer(f"{ours}.{path}", f"{theirs}.{original}", (width, width))
        yield LinearLayer(f"{ours}.ff.linear_in", f"{theirs}.mlp_in", (2 * inner, width))
        yield LinearLayer(f"{ours}.ff.linear_out", f"{theirs}.mlp_out", (width, inner))
    yield LinearLayer("norm_out.linear", "final_layer.image.adaLN_modulation.1", (2 * width, width), swapped=True)
    yield LinearLayer("proj_out", "final_layer.image.linear", (int(config["in_channels"]), width))


def _blocks(config: Config) -> Iterator[tuple[str, str]]:
    for index in range(int(config["num_layers"])):
        for stream in _STREAMS:
            yield f"mode_blocks.{stream}.{index}", f"content_mode_blocks.{stream}.{index}"
        yield f"txt_mode_blocks.{index}", f"txt_mode_blocks.{index}"
    for index in range(int(config["num_single_layers"])):
        yield f"single_transformer_blocks.{index}", f"single_blocks.{index}"


def _slots(config: Config) -> Iterator[Slot]:
    yield from layer_slots(transformer_layers(config), has_bias=False)
    for ours, theirs in _blocks(config):
        for norm, original in _NORMS.items():
            yield Slot(f"{ours}.{norm}", f"{theirs}.{original}")


TRANSFORMER_FILE = transformer_file.transformer_file(
    _slots,
    first=f"{_MODULATIONS}.image.lin.",
    marks=(f".{_MODULATIONS}.image.",),
    diffusers_marks=(f"{_MODULATIONS}.image.linear.",),
    unused=("repa_projectors.",),
    others=tuple(f".{_MODULATIONS}.{stream}." for stream in ("video", "audio")),
)


def _configs_of(configs: Configs, shapes: Shapes) -> Configs:
    """Return the published configs, or the distilled model's if a file has the weights that only it has."""
    return {**configs, "transformer": config_in_file("flux3", shapes, configs["transformer"])}


# What makes a model different from the published one.
_SHAPING = (
    *("num_layers", "num_single_layers", "num_attention_heads", "attention_head_dim", "joint_attention_dim"),
    *("axes_dims_rope", "rope_theta", "mlp_ratio", "flow_map"),
)
# diffusers was measured at toy size (2026-11-29). ComfyUI has the model, but its names of layers are not known here.
_ROW: table.Row = {**table.UNMEASURED, "diffusers 0.31": table.NO_MODEL}
_NOT_KOHYA = table.none("ignores kohya's names of this model")
_NAMING_ROWS: Mapping[str, table.Row] = {
    **{name: {**_ROW, "diffusers": table.ALL} for name in ("PEFT, denoiser", "ComfyUI, diffusers names")},
    **{name: {**_ROW, "diffusers": _NOT_KOHYA} for name in (table.SGM_NAMES, table.DIFFUSERS_NAMES)},
    "OneTrainer, lora_transformer_": {**_ROW, "diffusers": _NOT_KOHYA},
    "ComfyUI, original names": {
        **_ROW,
        "diffusers": {"": table.ALL, "outside": table.none("maps only the published checkpoint's names of blocks")},
    },
    "SimpleTuner": {**_ROW, "diffusers": table.refuses("raises an error: it does not know these names")},
    "PEFT, denoiser without its prefix": {**_ROW, "diffusers": table.NEEDS_PREFIX},
    "other factors in PEFT names": {**_ROW, "diffusers": table.WRONG_FACTORS},
}


MODEL = PublishedModel(
    name="flux3",
    label="FLUX.3 klein",
    family="flux3",
    architecture="flux-3-image-klein",
    implementation="https://github.com/black-forest-labs/flux-3-image-klein",
    adapter_targets=targets_from(transformer_layers),
    repository="black-forest-labs/flux-3-image-klein-base",
    pipelines={"": "Flux3ModularPipeline"},
    blocks="Flux3AutoBlocks",
    index={"tokenizer": ["transformers", "Qwen3VLProcessor"]},
    single_file=replace(transformer_file.single_denoiser(TRANSFORMER_FILE, *_SHAPING), configs_of=_configs_of),
    naming_rows=_NAMING_ROWS,
    versions={},
    extra_rows=transformer_file.NO_COMFY_ALPHAS,
)
FILES = transformer_file.files_of_one_model(MODEL, TRANSFORMER_FILE, "flux-3", "flux3", "flux.3", "flux_3")
FILES = replace(FILES, pipelines={**FILES.pipelines, "Flux3DistilledModularPipeline": ""})
