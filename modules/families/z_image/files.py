"""The files of Z-Image: folders, the names of layers in LoRA files, and files of the transformer alone.

Adapter files name the layers as diffusers does, behind `lora_unet_`, `transformer.` or, as ComfyUI has it,
`diffusion_model.`: the published checkpoint has separate projections of queries, keys and values, too. Files that
were made with ComfyUI's checkpoint have its names, with these projections in one matrix; such files are only read.

A file of the transformer has diffusers' names or the names of ComfyUI's checkpoints: with the projections of queries,
keys and values in one matrix, other names of the norms of queries and keys, of the output projection and of the layers
at both ends, and the prefix `model.diffusion_model.` or none (diffusers'
`convert_z_image_transformer_checkpoint_to_diffusers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts.single_file.slots import Slot, fused_slots, limit_layers, module_slots
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_denoiser, transformer_file
from modules.families.published import Configs, PublishedModel
from modules.formats import program_table as table
from modules.formats.adapter_forms import Layout
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets

_PATCH = "2-1"  # of 2 x 2 latents in one frame: the only one of published models
_FIRST = "noise_refiner.0."
_SAME_IN_BLOCKS = (
    *(f"feed_forward.{name}" for name in ("w1", "w2", "w3")),
    *("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"),
)
_RENAMED_IN_ATTENTION = {"to_out.0": "out", "norm_q": "q_norm", "norm_k": "k_norm"}
_MODULES = {
    f"all_x_embedder.{_PATCH}": "x_embedder",
    f"all_final_layer.{_PATCH}.linear": "final_layer.linear",
    f"all_final_layer.{_PATCH}.adaLN_modulation.1": "final_layer.adaLN_modulation.1",
    "t_embedder.mlp.0": "t_embedder.mlp.0",
    "t_embedder.mlp.2": "t_embedder.mlp.2",
    "cap_embedder.1": "cap_embedder.1",
}


def path_in_comfy(path: str) -> str:
    """Return the path in ComfyUI's checkpoints of a layer that is not fused with others there."""
    block, attention, name = path.rpartition(".attention.")
    return f"{block}{attention}{_RENAMED_IN_ATTENTION.get(name, name)}" if block else _MODULES.get(path, path)


def _slots(config: Mapping[str, Any]) -> Iterator[Slot]:
    for key in ("x_pad_token", "cap_pad_token", "cap_embedder.0.weight"):
        yield Slot(key, key)
    for ours, theirs in _MODULES.items():
        yield from module_slots(ours, theirs)
    refiners = int(config["n_refiner_layers"])
    counts = {"layers": int(config["n_layers"]), "noise_refiner": refiners, "context_refiner": refiners}
    for group, count in counts.items():
        for index in range(count):
            yield from _block_slots(f"{group}.{index}", is_modulated=group != "context_refiner")


def _block_slots(block: str, *, is_modulated: bool) -> Iterator[Slot]:
    attention = f"{block}.attention"
    yield from fused_slots((f"{attention}.to_{x}.weight" for x in "qkv"), f"{attention}.qkv.weight")
    for ours, theirs in _RENAMED_IN_ATTENTION.items():
        yield from module_slots(f"{attention}.{ours}", f"{attention}.{theirs}", bias=False)
    for name in _SAME_IN_BLOCKS:
        yield from module_slots(f"{block}.{name}", f"{block}.{name}", bias=False)
    if is_modulated:
        yield from module_slots(f"{block}.adaLN_modulation.0", f"{block}.adaLN_modulation.0")


TRANSFORMER_FILE = transformer_file(
    _slots,
    first=_FIRST,
    marks=(".cap_pad_token",),  # Lumina 2 has most of the other names, too
    diffusers_marks=("all_x_embedder.",),
    unused=("norm_final.weight",),
)


_FUSED = (".to_q", ".to_k", ".to_v")  # the projections that ComfyUI's checkpoints have as one
_EMBEDDED_TIME = 256  # ADALN_EMBED_DIM of diffusers' class: the most channels of the embedded time
# What makes a model different from the published one; `axes_lens` are the lengths of tables alone.
_SHAPING = ("in_channels", "dim", "n_layers", "n_refiner_layers", "n_heads", "n_kv_heads", "cap_feat_dim", "axes_dims")

# diffusers was measured at toy size (2026-11-27 and 28); ComfyUI's are the names in its maps.
_IGNORES = table.none("ignores ComfyUI's names of these layers")
_NAMING_ROWS: Mapping[str, table.Row] = {
    **dict.fromkeys(("PEFT, denoiser", "ComfyUI, diffusers names"), table.COMFY_AND_DIFFUSERS),
    table.DIFFUSERS_NAMES: {
        **table.COMFY_AND_DIFFUSERS,
        "ComfyUI": {
            "": table.ALL,
            "renamed": table.none("knows the attention and both ends by other names in this form"),
        },
    },
    "ComfyUI, original names": {**table.COMFY_AND_DIFFUSERS, "diffusers": _IGNORES},
    "kohya, ComfyUI's names": {**table.COMFY_AND_DIFFUSERS, "diffusers": {"": table.ALL, "renamed": table.UNKNOWN}},
    "PEFT, denoiser without its prefix": {**table.COMFY_AND_DIFFUSERS, "diffusers": table.NEEDS_PREFIX},
    "other factors in PEFT names": {**table.COMFY_AND_DIFFUSERS, "diffusers": table.WRONG_FACTORS},
}


def _layers(configs: Configs) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield all linear layers of the transformer with the shapes of their weights (out, in)."""
    config = configs["transformer"]
    width, refiners = int(config["dim"]), int(config["n_refiner_layers"])
    inner, time = int(width / 3 * 8), min(width, _EMBEDDED_TIME)
    counts = {"layers": int(config["n_layers"]), "noise_refiner": refiners, "context_refiner": refiners}
    for block in limit_layers(f"{group}.{index}" for group, count in counts.items() for index in range(count)):
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            yield f"{block}.attention.{name}", (width, width)
        for name, shape in (("w1", (inner, width)), ("w2", (width, inner)), ("w3", (inner, width))):
            yield f"{block}.feed_forward.{name}", shape
        if not block.startswith("context"):
            yield f"{block}.adaLN_modulation.0", (4 * width, time)
    patch = 4 * int(config["in_channels"])  # of 2 x 2 latents
    yield "all_x_embedder.2-1", (width, patch)
    yield "all_final_layer.2-1.linear", (patch, width)
    yield "all_final_layer.2-1.adaLN_modulation.1", (width, time)
    yield "cap_embedder.1", (width, int(config["cap_feat_dim"]))
    yield "t_embedder.mlp.0", (1024, 256)
    yield "t_embedder.mlp.2", (time, 1024)


def _targets(configs: Configs) -> AdapterTargets:
    layers: dict[str, AdapterTarget] = {}
    matrices: list[AdapterTarget] = []
    for path, shape in _layers(configs):
        paths: dict[Layout, str] = {"diffusers": path}
        if not path.endswith(_FUSED):
            paths["comfyui"] = path_in_comfy(path)
        layers[path] = AdapterTarget("transformer", path, shape, paths, "lora_unet_", "diffusers")
        if path.endswith(_FUSED[-1]):
            attention = path.removesuffix(_FUSED[-1])
            pieces = tuple(layers[f"{attention}{name}"] for name in _FUSED)
            fused = f"{attention}.qkv"
            whole = (sum(piece.weight[0] for piece in pieces), *shape[1:])
            matrices.append(
                AdapterTarget(
                    "transformer", fused, whole, {"comfyui": fused}, "lora_unet_", "comfyui", pieces, is_only_read=True
                )
            )
    return AdapterTargets.of(layers.values(), matrices)


MODEL = PublishedModel(
    name="z_image",
    label="Z-Image",
    family="z_image",
    architecture="Z-Image",
    implementation="https://github.com/Tongyi-MAI/Z-Image",
    adapter_targets=_targets,
    repository="Tongyi-MAI/Z-Image-Turbo",
    pipelines={"": "ZImagePipeline"},
    single_file=single_denoiser(TRANSFORMER_FILE, *_SHAPING),
    naming_rows=_NAMING_ROWS,
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "z-image", "z_image", "zimage")
