"""OneTrainer's LoRA, LoHa, LoKr and OFT."""

from __future__ import annotations

from collections.abc import Mapping

from modules.adapters.registry import ADAPTERS
from modules.config.migrations.onetrainer_11.tables import DTYPES, choose_layers, move_all, remember
from modules.config.migrations.tree_moves import Notes, Tree, choose, put
from modules.system.problem import Problem

# TF32 is a compute mode, not a dtype of weights.
_DTYPES = {**DTYPES, "TFLOAT_32": "float32"}
_KINDS = {"LORA": "lora", "LOHA": "loha", "LOKR": "lokr", "OFT_2": "oft"}
# Keys of a single adapter type, and its field.
_OWN: Mapping[str, Mapping[str, str]] = {
    "lora": {
        "lora_decompose": "decompose",
        "lora_decompose_norm_epsilon": "decompose_norm_eps",
        "lora_decompose_output_axis": "decompose_output_axis",
    },
    "loha": {},
    "lokr": {
        "lokr_dim": "rank",
        "lokr_decompose_factor": "factor",
        "lokr_decompose_both": "decompose_both",
        "lokr_use_tucker": "use_tucker",
        "lokr_full_matrix": "full_matrix",
        "lokr_weight_decompose": "decompose",
        "lokr_dora_on_output": "decompose_output_axis",
        "lokr_vec_trick": "vec_trick",
    },
    "oft": {"oft_block_size": "block_size", "oft_block_share": "block_share", "oft_scaled": "scaled"},
}
_AXIS = "decompose_output_axis"
_ON_OUTPUTS = {"lora": False, "lokr": True}  # OneTrainer's defaults
_OFT_V2 = "OFT rotates the inputs of layers, as in OneTrainer. Few programs load its files."
_OF_ALL = {
    "dropout_probability": "dropout",
    "lora_model_name": "start_from",
    "bundle_additional_embeddings": "bundle_embeddings",
}


def adapter_of(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the adapter settings; those of adapter types that are not selected are remembered."""
    kind: Tree = {"name": "lora"}
    choose(rest, kind, "peft_type", "name", _KINDS, notes, where="adapter")
    name = kind["name"]
    settings: Tree = {"name": name, "layers": "all"}
    own = {other: _own_of(rest, other) for other in _OWN}
    own["lora" if name != "loha" else "loha"] |= _pop_all(rest, {"lora_rank": "rank"})
    if name != "oft":
        settings |= _pop_all(rest, {"lora_alpha": "alpha"})
    rest.pop("lora_alpha", None)
    settings |= own.pop(name)
    move_all(rest, settings, _OF_ALL)
    choose(rest, settings, "lora_weight_dtype", "dtype", _DTYPES, notes, where="adapter.dtype")
    choose_layers(rest, settings, ("layers", "custom_layers", "layers_regex"), notes, where="adapter.layers")
    if name in _ON_OUTPUTS:
        settings.setdefault(_AXIS, _ON_OUTPUTS[name])
    if name == "oft":
        settings["rotates"] = "inputs"
        notes.append(
            Problem("adapter.rotates", _OFT_V2, "info", "Choose Outputs for a file that ComfyUI and A1111 load.")
        )
    put(result, "adapter", settings)
    for other, fields in own.items():
        defaults = ADAPTERS[other].settings().model_dump()
        kept = {key: value for key, value in fields.items() if value != defaults[key]}
        if fields.get("decompose"):
            kept[_AXIS] = fields.get(_AXIS, _ON_OUTPUTS[other])
        remember(result, "adapter", other, kept)


def _own_of(rest: Tree, kind: str) -> Tree:
    return _pop_all(rest, _OWN[kind])


def _pop_all(rest: Tree, places: Mapping[str, str]) -> Tree:
    popped: Tree = {}
    move_all(rest, popped, places)
    return popped
