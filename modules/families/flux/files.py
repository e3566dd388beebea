"""The files of FLUX.1: folders, the names of layers in LoRA files, and files of the transformer alone.

kohya's trainers name the transformer's layers as the published checkpoints do, with the projections of queries, keys
and values in one matrix; diffusers' names have the prefix `transformer.`. The published names have the prefix
`model.diffusion_model.` in ComfyUI's checkpoints with all parts, and none in files of the transformer alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.kinds.file_kind import FileKind
from modules.families.parts import double_stream
from modules.families.parts.linear_layers import LinearLayer, embedding_layers, original_targets, width_of
from modules.families.parts.lora_names import clip_targets
from modules.families.parts.single_file.detect import denoiser_kind
from modules.families.parts.single_file.transformer_file import ONE_WIDTH, single_denoiser, transformer_file
from modules.families.parts.t5_layers import t5_targets
from modules.families.published import Configs, FamilyFiles, PublishedModel
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.program_table import ALL, UNKNOWN, Row, none, refuses

_EMBEDDED = 256  # the channels of an embedded timestep or guidance scale, in diffusers' class


def transformer_layers(config: Mapping[str, Any]) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `FluxTransformer2DModel` of this config."""
    width = width_of(config)
    embedders = {"timestep": ("time_in", _EMBEDDED), "text": ("vector_in", int(config["pooled_projection_dim"]))}
    if config.get("guidance_embeds"):
        embedders["guidance"] = ("guidance_in", _EMBEDDED)
    for name, (original, columns) in embedders.items():
        path = f"time_text_embed.{name}_embedder"
        yield from embedding_layers(path, original, columns, width, ("in_layer", "out_layer"))
    yield from double_stream.end_layers(config)
    yield LinearLayer("norm_out.linear", "final_layer.adaLN_modulation.1", (2 * width, width), swapped=True)
    yield from double_stream.double_layers(config, has_modulation=True)
    yield from double_stream.single_layers(config, has_modulation=True)


TRANSFORMER_FILE = transformer_file(
    lambda config: double_stream.block_slots(config, transformer_layers(config)),
    first=double_stream.FIRST_BLOCK,
    # Models made from FLUX.1 without modulations in their blocks have all other names, too.
    marks=(".double_blocks.0.img_mod.lin.", ".single_transformer_blocks.0.norm.linear."),
    diffusers_marks=("single_transformer_blocks.",),
    others=(".context_embedder.token_refiner.",),  # HunyuanVideo has single blocks of the same names
)


_FILL_CHANNELS = 384
_NO_T5 = none("loads no LoRA of T5")
_NO_NORM = none("does not map the norms of CLIP")
_TEXT_ROWS: Mapping[str, Row] = {
    "kohya, text": {
        "ComfyUI": {"": ALL, "norm": _NO_NORM},
        "Forge": UNKNOWN,
        "diffusers": {"": ALL, "T5": refuses("raises an error: the file has layers of T5")},
        "sd-scripts": {"": ALL, "norm": UNKNOWN},
    },
    "PEFT, text": {
        "ComfyUI": {"": ALL, "norm": _NO_NORM, "T5": none("does not map T5 in this form")},
        "Forge": UNKNOWN,
        "diffusers": {"": ALL, "T5": _NO_T5},
    },
    "ComfyUI, text": {"ComfyUI": ALL, "diffusers": UNKNOWN},
}
# What makes a model different from the published one.
_SHAPING = (
    *("num_layers", "num_single_layers", "num_attention_heads", "attention_head_dim", "joint_attention_dim"),
    *("pooled_projection_dim", "axes_dims_rope"),
)


def _targets(configs: Configs) -> AdapterTargets:
    layers, matrices = original_targets(transformer_layers(configs["transformer"]))
    clip = clip_targets("text_encoder", configs["text_encoder"], "lora_te1_")
    t5 = t5_targets("text_encoder_2", configs["text_encoder_2"], "lora_te3_")
    return AdapterTargets.of((*layers, *clip, *t5), matrices)


def _model(name: str, label: str, architecture: str, *, pipelines: Mapping[str, str]) -> PublishedModel:
    return PublishedModel(
        name=name,
        label=label,
        family="flux",
        architecture=architecture,
        variant_architectures={"inpainting": "flux-1-fill-dev", "edit": "flux-1-kontext-dev"},
        kohya_version="flux1",
        implementation="https://github.com/black-forest-labs/flux",
        adapter_targets=_targets,
        comfy_encoders={"text_encoder": "clip_l", "text_encoder_2": "t5xxl"},
        repository="black-forest-labs/FLUX.1-schnell",  # the one whose licence allows everybody to read it
        pipelines=pipelines,
        single_file=single_denoiser(TRANSFORMER_FILE, *_SHAPING),
        embedding_tensors=("clip_l", "t5xxl"),
        programs=("ComfyUI", "Forge", "diffusers"),
        naming_rows={**double_stream.NAMING_ROWS, **_TEXT_ROWS},
        extra_rows=ONE_WIDTH,
    )


_DEV = _model(
    "flux_dev",
    "FLUX.1 dev",
    "flux-1-dev",
    pipelines={"": "FluxPipeline", "inpainting": "FluxFillPipeline", "edit": "FluxKontextPipeline"},
)
_SCHNELL = _model("flux_schnell", "FLUX.1 schnell", "flux-1-schnell", pipelines={"": "FluxPipeline"})


def published_name(config: Mapping[str, Any]) -> str:
    """Return the published model that matches a transformer's config: only schnell reads no guidance scale."""
    return _DEV.name if config.get("guidance_embeds") else _SCHNELL.name


def _checkpoint(header: CheckpointHeader) -> FileKind | None:
    has_guidance = any(".guidance_" in f".{name}" for name in header.shapes)
    return denoiser_kind(header, _DEV if has_guidance else _SCHNELL, "transformer", TRANSFORMER_FILE, "flow")


FILES = FamilyFiles(
    models=(_DEV, _SCHNELL),
    pipelines={"FluxPipeline": "", "FluxFillPipeline": "inpainting", "FluxKontextPipeline": "edit"},
    folder_model=lambda facts: published_name(facts.denoiser),
    checkpoint=_checkpoint,
    denoiser_file=TRANSFORMER_FILE,
    lora_words=(("schnell", _SCHNELL.name), ("flux", _DEV.name)),
    variants={_FILL_CHANNELS: "inpainting"},
    variant_words={"kontext": "edit"},
    repository_model=lambda name: _SCHNELL.name if "schnell" in name.lower() else _DEV.name,
)
