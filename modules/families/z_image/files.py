"""The files of Z-Image: folders, the names of layers in LoRA files, and files of the transformer alone.

Adapter files name the layers as diffusers does, behind `lora_unet_`, `transformer.` or, as ComfyUI has it,
`diffusion_model.`: the published checkpoint has separate projections of queries, keys and values, too. Files that
were made with ComfyUI's checkpoint have its names, with these projections in one matrix; they are read alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from modules.families.parts.single_file.slots import limited
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_transformer
from modules.families.published import Configs, PublishedModel
from modules.families.z_image.transformer_file import TRANSFORMER_FILE, path_in_comfy
from modules.formats.adapter_forms import Layout
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets
from modules.formats.program_table import (
    ALL,
    COMFY_OF_FLOW,
    DIFFUSERS_NAMES,
    UNKNOWN,
    UNMEASURED,
    Row,
    none,
    refuses,
)

_FUSED = (".to_q", ".to_k", ".to_v")  # the projections that ComfyUI's checkpoints have as one
_EMBEDDED_TIME = 256  # ADALN_EMBED_DIM of diffusers' class: the most channels of the embedded time
# What makes a model different from the published one; `axes_lens` are the lengths of tables alone.
_SHAPING = ("in_channels", "dim", "n_layers", "n_refiner_layers", "n_heads", "n_kv_heads", "cap_feat_dim", "axes_dims")

# diffusers was measured at toy size (2026-11-27 and 28); ComfyUI's are the names in its maps.
_ANSWERS: Row = {
    **UNMEASURED,
    "ComfyUI": ALL,
    "diffusers": ALL,
    **dict.fromkeys(("diffusers 0.31", "sd-scripts"), none("does not have this model")),
}
_IGNORES = none("ignores ComfyUI's names of these layers")
_NAMING_ROWS: Mapping[str, Row] = {
    **dict.fromkeys(("PEFT, denoiser", "ComfyUI, diffusers names"), _ANSWERS),
    DIFFUSERS_NAMES: {
        **_ANSWERS,
        "ComfyUI": {"": ALL, "renamed": none("knows the attention and both ends by other names in this form")},
    },
    "ComfyUI, original names": {**_ANSWERS, "diffusers": _IGNORES},
    "kohya, ComfyUI's names": {**_ANSWERS, "diffusers": {"": ALL, "renamed": UNKNOWN}},
    "PEFT, denoiser without its prefix": {**_ANSWERS, "diffusers": none("needs the prefix transformer.")},
    "other factors in PEFT names": {**_ANSWERS, "diffusers": refuses("raises an error for the factors' names")},
}


def _layers(configs: Configs) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield all linear layers of the transformer with the shapes of their weights (out, in)."""
    config = configs["transformer"]
    width, refiners = int(config["dim"]), int(config["n_refiner_layers"])
    inner, time = int(width / 3 * 8), min(width, _EMBEDDED_TIME)
    counts = {"layers": int(config["n_layers"]), "noise_refiner": refiners, "context_refiner": refiners}
    for block in limited(f"{group}.{index}" for group, count in counts.items() for index in range(count)):
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
    kohya_version="z_image",
    implementation="https://github.com/Tongyi-MAI/Z-Image",
    adapter_targets=_targets,
    configs=Path(__file__).parent / "configs" / "z_image",
    repository="Tongyi-MAI/Z-Image-Turbo",
    pipelines={"": "ZImagePipeline"},
    single_file=single_transformer(TRANSFORMER_FILE, *_SHAPING),
    programs=("ComfyUI", "diffusers"),
    naming_rows=_NAMING_ROWS,
    versions={"ComfyUI": COMFY_OF_FLOW},
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "z-image", "z_image", "zimage")
