"""OneTrainer's adapters, by the names in their records."""

from __future__ import annotations

from collections.abc import Mapping

from modules.adapters.registry import ADAPTERS, DEFAULT_ADAPTER
from modules.config.migrations.onetrainer_11.tables import DTYPES, choose_layers, move_all, remember
from modules.config.migrations.tree_moves import Notes, Tree, choose, put
from modules.system.problem import Problem

# TF32 is a compute mode, not a dtype of weights.
_DTYPES = {**DTYPES, "TFLOAT_32": "float32"}
_AXIS = "decompose_output_axis"
_OF_ALL = {
    "dropout_probability": "dropout",
    "lora_model_name": "start_from",
    "bundle_additional_embeddings": "bundle_embeddings",
}


def adapter_of(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the adapter settings; those of adapter types that are not selected are remembered."""
    kind: Tree = {"name": DEFAULT_ADAPTER.name}
    known = {name: spec.onetrainer for name, spec in ADAPTERS.items() if spec.onetrainer is not None}
    choose(rest, kind, "peft_type", "name", {o.peft_type: name for name, o in known.items()}, notes, where="adapter")
    name = kind["name"]
    settings: Tree = {"name": name, "layers": "all"}
    chosen = known[name]
    own = _pop_all(rest, chosen.fields)  # first: adapters can share a key
    others = {other: _pop_all(rest, names.fields) for other, names in known.items() if other != name}
    if "alpha" in ADAPTERS[name].settings.model_fields:
        settings |= _pop_all(rest, {"lora_alpha": "alpha"})
    rest.pop("lora_alpha", None)
    settings |= own
    move_all(rest, settings, _OF_ALL)
    choose(rest, settings, "lora_weight_dtype", "dtype", _DTYPES, notes, where="adapter.dtype")
    choose_layers(rest, settings, ("layers", "custom_layers", "layers_regex"), notes, where="adapter.layers")
    if chosen.dora_on_outputs is not None:
        settings.setdefault(_AXIS, chosen.dora_on_outputs)
    settings |= chosen.fixed
    if chosen.note:
        path = ".".join(("adapter", *list(chosen.fixed)[:1]))
        notes.append(Problem(path, chosen.note, "info", chosen.advice))
    put(result, "adapter", settings)
    for other, fields in others.items():
        defaults = ADAPTERS[other].settings().model_dump()
        kept = {key: value for key, value in fields.items() if value != defaults[key]}
        if fields.get("decompose"):
            kept[_AXIS] = fields.get(_AXIS, known[other].dora_on_outputs)
        remember(result, "adapter", other, kept)


def _pop_all(rest: Tree, places: Mapping[str, str]) -> Tree:
    popped: Tree = {}
    move_all(rest, popped, places)
    return popped
