"""How files contain the transformer: diffusers' names, and the names of ComfyUI's checkpoints.

ComfyUI's have the projections of queries, keys and values in one matrix, call the norms of queries and keys, the
output projection and the layers at both ends by other names, and have the prefix `model.diffusion_model.` or none
(diffusers' `convert_z_image_transformer_checkpoint_to_diffusers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts.single_file.slots import Slot, fused_slots, module_slots
from modules.families.parts.single_file.transformer_file import transformer_file

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
