"""The files of PixArt: folders, the names of layers in LoRA files, and files of the transformer alone.

diffusers' names have the prefix `transformer.`; ComfyUI also reads the names of the published checkpoints. diffusers'
pipelines of PixArt load no LoRA: PEFT puts one into their transformer.

The published checkpoints have the projections of queries, keys and values in one matrix, the projections of a prompt's
keys and values in another. They have two tensors more: the positions, which are computed, and the embedding of a
missing prompt, which sampling never uses (the authors' `convert_pixart_to_diffusers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.kinds.file_kind import FileKind
from modules.families.parts.linear_layers import LinearLayer, embedding_layers, layer_slots, width_of
from modules.families.parts.single_file.detect import denoiser_kind
from modules.families.parts.single_file.slots import Slot
from modules.families.parts.single_file.transformer_file import single_denoiser, transformer_file
from modules.families.parts.t5_layers import targets_with_t5
from modules.families.pixart.spec import ALPHA_TOKENS, has_size_conditions, is_alpha
from modules.families.published import FamilyFiles, PublishedModel
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.program_table import ALL, RAW_PEFT, SGM_NAMES, UNMEASURED, Row, none

Config = Mapping[str, Any]
MISSING_PROMPT = "y_embedder.y_embedding"
"""The embedding of a missing prompt, one row for each token that the model reads."""
_EMBEDDED = 256  # the channels of an embedded number, in diffusers' class
_MLP_RATIO = 4
_SIZES = {"resolution": "csize_embedder", "aspect_ratio": "ar_embedder"}


def transformer_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `PixArtTransformer2DModel` of this config, and its first one, a convolution."""
    width, side, channels = width_of(config), int(config["patch_size"]), int(config["in_channels"])
    yield LinearLayer("pos_embed.proj", "x_embedder.proj", (width, channels, side, side))
    yield from _embedder("timestep", "t_embedder", width)
    if has_size_conditions(config):
        for name, original in _SIZES.items():
            yield from _embedder(name, original, width // 3)
    yield LinearLayer("adaln_single.linear", "t_block.1", (6 * width, width))
    text = int(config["caption_channels"])
    yield LinearLayer("caption_projection.linear_1", "y_embedder.y_proj.fc1", (width, text))
    yield LinearLayer("caption_projection.linear_2", "y_embedder.y_proj.fc2", (width, width))
    for index in range(int(config["num_layers"])):
        yield from _block(index, width, int(config["cross_attention_dim"]))
    patch = side**2 * int(config.get("out_channels") or channels)
    yield LinearLayer("proj_out", "final_layer.linear", (patch, width))


def _embedder(name: str, original: str, width: int) -> Iterator[LinearLayer]:
    return embedding_layers(f"adaln_single.emb.{name}_embedder", original, _EMBEDDED, width)


def _block(index: int, width: int, text: int) -> Iterator[LinearLayer]:
    """Yield the layers of a block; layers that share a matrix in the original layout follow each other."""
    ours, theirs = f"transformer_blocks.{index}", f"blocks.{index}"
    for piece, name in enumerate("qkv"):
        yield LinearLayer(f"{ours}.attn1.to_{name}", f"{theirs}.attn.qkv", (width, width), piece, (1, 1, 1))
    yield LinearLayer(f"{ours}.attn1.to_out.0", f"{theirs}.attn.proj", (width, width))
    yield LinearLayer(f"{ours}.attn2.to_q", f"{theirs}.cross_attn.q_linear", (width, width))
    for piece, name in enumerate("kv"):
        yield LinearLayer(f"{ours}.attn2.to_{name}", f"{theirs}.cross_attn.kv_linear", (width, text), piece, (1, 1))
    yield LinearLayer(f"{ours}.attn2.to_out.0", f"{theirs}.cross_attn.proj", (width, width))
    yield LinearLayer(f"{ours}.ff.net.0.proj", f"{theirs}.mlp.fc1", (_MLP_RATIO * width, width))
    yield LinearLayer(f"{ours}.ff.net.2", f"{theirs}.mlp.fc2", (width, _MLP_RATIO * width))


def _slots(config: Config) -> Iterator[Slot]:
    yield from layer_slots(transformer_layers(config))
    for index in range(int(config["num_layers"])):
        yield Slot(f"transformer_blocks.{index}.scale_shift_table", f"blocks.{index}.scale_shift_table")
    yield Slot("scale_shift_table", "final_layer.scale_shift_table")


TRANSFORMER_FILE = transformer_file(
    _slots,
    first="blocks.0.cross_attn.",
    marks=(".t_block.1.", ".adaln_single.emb.timestep_embedder."),
    diffusers_marks=("transformer_blocks.",),
    unused=("pos_embed", MISSING_PROMPT),
)


# What makes a model different from the published one.
_SHAPING = (
    *("num_layers", "num_attention_heads", "attention_head_dim", "cross_attention_dim", "caption_channels"),
    *("sample_size", "interpolation_scale", "use_additional_conditions"),
)
_OTHERS: Row = {
    **UNMEASURED,
    "diffusers": none("its pipelines of PixArt load no LoRA; PEFT loads one into their transformer"),
    **dict.fromkeys(("diffusers 0.31", "sd-scripts"), none("does not support this model")),
}
_IN_COMFY: Row = {**_OTHERS, "ComfyUI": ALL}
_NOT_IN_COMFY: Row = {**_OTHERS, "ComfyUI": none("does not map these names for PixArt")}
# ComfyUI's are the names in its maps; diffusers' pipelines have no loader in 0.42.1.
_NAMING_ROWS: Mapping[str, Row] = {
    **dict.fromkeys(("PEFT, denoiser", RAW_PEFT, SGM_NAMES, "ComfyUI, original names", "ComfyUI, text"), _IN_COMFY),
    "kohya, text": _IN_COMFY,
    **dict.fromkeys(("SimpleTuner", "OneTrainer, lora_transformer_", "PEFT, text"), _NOT_IN_COMFY),
}


def _model(name: str, label: str, *, pipeline: str, repository: str) -> PublishedModel:
    return PublishedModel(
        name=name,
        label=label,
        family="pixart",
        architecture=name.replace("_", "-"),
        implementation=f"https://github.com/PixArt-alpha/PixArt-{name.rpartition('_')[2]}",
        adapter_targets=targets_with_t5(transformer_layers),
        comfy_encoders={"text_encoder": "t5xxl"},
        repository=f"PixArt-alpha/{repository}",
        pipelines={"": pipeline},
        single_file=single_denoiser(TRANSFORMER_FILE, *_SHAPING),
        embedding_tensors=("t5xxl",),
        without_embeddings={"diffusers": "its pipelines of PixArt load no embeddings"},
        naming_rows=_NAMING_ROWS,
        weight_bytes=4,
    )


_SIGMA = _model("pixart_sigma", "PixArt sigma", pipeline="PixArtSigmaPipeline", repository="PixArt-Sigma-XL-2-1024-MS")
_ALPHA = _model("pixart_alpha", "PixArt alpha", pipeline="PixArtAlphaPipeline", repository="PixArt-XL-2-1024-MS")


def published_name(config: Mapping[str, Any]) -> str:
    """Return the published model that matches a transformer's config."""
    return _ALPHA.name if is_alpha(config) else _SIGMA.name


def _checkpoint(header: CheckpointHeader) -> FileKind | None:
    """Return the kind of a file: alpha's have size conditions, or fewer rows for a missing prompt.

    Sana and LTX video have the layers of the time, too, but not these of the blocks and of the patches.
    """
    if not any(mark in f".{name}" for name in header.shapes for mark in (".mlp.fc1.", ".pos_embed.proj.")):
        return None
    rows = next((shape[0] for name, shape in header.shapes.items() if name.endswith(MISSING_PROMPT)), 0)
    has_sizes = any("csize_embedder." in name or ".resolution_embedder." in name for name in header.shapes)
    model = _ALPHA if has_sizes or rows == ALPHA_TOKENS else _SIGMA
    return denoiser_kind(header, model, "transformer", TRANSFORMER_FILE, "epsilon")


FILES = FamilyFiles(
    models=(_SIGMA, _ALPHA),
    pipelines={"PixArtSigmaPipeline": "", "PixArtAlphaPipeline": ""},
    folder_model=lambda facts: published_name(facts.denoiser),
    checkpoint=_checkpoint,
    denoiser_file=TRANSFORMER_FILE,
    lora_words=(("pixart-alpha", _ALPHA.name), ("pixart_alpha", _ALPHA.name), ("pixart", _SIGMA.name)),
    repository_model=lambda name: _SIGMA.name if "sigma" in name.lower() else _ALPHA.name,
)
