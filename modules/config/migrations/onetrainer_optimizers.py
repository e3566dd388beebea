"""Convert OneTrainer's nested optimizer object to our variants.

Each function pops the keys that it converts from the object; keys that are left have no counterpart here and are kept
by the caller. An empty value means OneTrainer's default for that optimizer, which is also ours.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from modules.config.migrations.tree_moves import Notes, Tree, number, pop_switch, source_of
from modules.optim.registry import OPTIMIZERS
from modules.settings.field import FieldRecord, records_of
from modules.system.problem import Problem, quote

_OPTIMIZER = "training.optimizer"
# Optimizers that OneTrainer removed, and the closest ones to them.
_SUCCESSORS: dict[str, Tree] = {
    "lion_prodigy_adv": {"name": "prodigy_adv"},
    "simplified_ademamix": {"name": "ademamix"},
}
# Their names, where they differ from ours.
_THEIRS = {
    "beta2_decay": "decay_rate",
    "muon_with_aux_adam": "MuonWithAuxAdam",
}
# Switches of earlier versions, and the current ones that do the same.
_RENAMED = {"cautious_mask": "use_cautious", "grams_moment": "use_grams"}
_REMOVED = ("use_muon_pp", "use_focus", "cautious_mask", "grams_moment", "k_warmup_steps")
# Switches that are on by default in each of their optimizer objects; all others are off.
_ON_FOR_ALL = {
    *("stochastic_rounding", "weight_decay_by_lr", "split_groups", "split_groups_mean", "factored", "factored_fp32"),
    *("use_stableadamw", "d_limiter", "use_schedulefree", "rms_rescaling"),
}
_ROUNDS_BY_DEFAULT = {
    *("adafactor", "prodigy_plus_schedule_free", "adamw_adv", "adopt_adv", "prodigy_adv", "signsgd_adv", "lion_adv"),
    *("muon_adv", "adamuon_adv"),
}
_CAN_ROUND = _ROUNDS_BY_DEFAULT | {"adam", "adamw", "came", "came_8bit"}


def optimizer_from(given: Tree, notes: Notes) -> Tree:
    """Return our optimizer for their object: its name and the settings that are set; never raises.

    An unknown optimizer stays in `given`, and AdamW is used instead.
    """
    theirs = given.pop("optimizer", None)
    result = _settings_of_name(theirs)
    if result is None:
        given["optimizer"] = theirs
        message = (
            f"The optimizer {theirs if isinstance(theirs, str) else quote(theirs)} is unknown; AdamW is used instead."
        )
        notes.append(
            Problem(_OPTIMIZER, message, "warning", "Check the learning rate: it may not be suitable for AdamW.")
        )
        return {"name": "adamw"}
    if isinstance(theirs, str) and theirs.lower() in _SUCCESSORS:
        message = f"OneTrainer removed the optimizer {theirs}; the closest one, {result['name']}, is used instead."
        notes.append(Problem(_OPTIMIZER, message, "warning", "Check its settings and the learning rate."))
        for key in result:  # the settings that make it the closest
            given.pop(_THEIRS.get(key, key), None)
    variant: type[BaseModel] = OPTIMIZERS[result["name"]].settings
    _rename_switches(given, variant, notes)
    drop_removed(given, result["name"], notes)
    for record in records_of(variant):
        _convert_field(given, result, record, notes)
    _drop_defaults(given)
    return result


def drop_removed(given: Tree, name: str, notes: Notes) -> None:
    """Drop, from settings of the optimizer `name`, those that do not exist here; report those that had an effect."""
    spec = OPTIMIZERS[name]
    for key, removed in spec.removed.items():
        source = source_of(given, key) or key
        value = given.pop(key, given.pop(key.lower(), None))  # in our own files all names are lower case
        if value is None or value in removed.harmless:
            continue
        message = f"{source} = {quote(value)} of {spec.label} does not exist here: {removed.why}"
        notes.append(Problem(_OPTIMIZER, message, "warning"))


def remembered_optimizers(defaults: Tree, chosen: Tree, notes: Notes) -> Tree:
    """Return the `Config.remembered` entry for "training.optimizer": for each optimizer, the settings that were set.

    `defaults` is their `optimizer_defaults`; only keys that are not converted stay in it. The `chosen` optimizer is not
    remembered.
    """
    remembered: Tree = {}
    for theirs in sorted(defaults):
        if _settings_of_name(theirs) is None or not isinstance(defaults[theirs], dict):
            continue
        left = {**defaults.pop(theirs), "optimizer": theirs}
        rounds = left.pop("stochastic_rounding", None)
        settings = optimizer_from(left, notes)
        name = settings.pop("name")
        if name in _CAN_ROUND and rounds not in (None, name in _ROUNDS_BY_DEFAULT):
            left["stochastic_rounding"] = rounds  # ours is one setting for all optimizers
        if left:
            defaults[theirs] = left
        plain = OPTIMIZERS[name].settings().model_dump()
        settings = {key: value for key, value in settings.items() if value != plain[key]}
        if settings and name != chosen.get("name"):
            remembered.setdefault(name, settings)
    return remembered


def low_precision_updates_from(
    given: Tree, name: str, notes: Notes, *, are_bfloat16: bool
) -> Literal["master", "stochastic"]:
    """Pop `stochastic_rounding` from their optimizer object and return the value of `training.small_weights` for it.

    `name` is our name of the optimizer. `are_bfloat16` is whether any trained weight is bfloat16, the only dtype with
    stochastic rounding.
    """
    name = _SUCCESSORS[name]["name"] if name in _SUCCESSORS else name
    where, default = "training.small_weights", name in _ROUNDS_BY_DEFAULT
    rounds = pop_switch(given, "stochastic_rounding", notes, where, default=default)
    return "stochastic" if rounds and name in _CAN_ROUND and are_bfloat16 else "master"


def _settings_of_name(theirs: object) -> Tree | None:
    """Return the first of our settings for one of their names; None for an unknown name."""
    if theirs is None:
        return {"name": "adamw"}
    if not isinstance(theirs, str):
        return None
    name = theirs.lower()
    return dict(_SUCCESSORS[name]) if name in _SUCCESSORS else {"name": name} if name in OPTIMIZERS else None


def _rename_switches(given: Tree, variant: type[BaseModel], notes: Notes) -> None:
    """Rename switches of earlier versions; report those without a counterpart."""
    for old in _REMOVED:
        if not given.get(old):
            given.pop(old, None)
        elif (new := _RENAMED.get(old, "")) in variant.model_fields:
            given[new] = given.pop(old)
            notes.append(Problem(f"{_OPTIMIZER}.{new}", f"{old} was renamed to {new}.", "info"))
        else:
            message = f"OneTrainer removed the setting {old}, and it has no counterpart here; it has no effect."
            notes.append(Problem(_OPTIMIZER, message, "warning"))


def _convert_field(given: Tree, result: Tree, record: FieldRecord, notes: Notes) -> None:
    """Move one field, cast as OneTrainer casts it, if it is set and allowed."""
    *folders, name = record.path.split(".")
    source, target = given, result
    for folder in folders:
        inner = source.get(folder)
        if not isinstance(inner, dict):
            return
        source = inner
    key = _THEIRS.get(name, name)
    theirs = source_of(source, key) or key
    value = source.pop(key, None)
    if value is None or (name == "growth_rate" and value in ("inf", math.inf)):
        return
    cast = _cast(value, record)
    if cast is None or not _is_allowed(result["name"], folders, name, cast):
        default = "none" if record.default is None else quote(record.default)
        allowed = record.allowed or record.kind
        message = f"{theirs} = {quote(value)} is not allowed ({allowed}); the default, {default}, is used."
        notes.append(Problem(f"{_OPTIMIZER}.{record.path}", message, "warning"))
        return
    for folder in folders:
        target = target.setdefault(folder, {})
    target[name] = cast


def _cast(value: object, record: FieldRecord) -> Any:
    """Return one of their values with the type of our field; None if it cannot be converted."""
    match record.kind:
        case "bool":
            return value if isinstance(value, bool) else None
        case "text":
            return value if isinstance(value, str) else None
        case "choice":
            count = number(value)
            return None if count is None else f"{count:g}"
        case "int":
            count = number(value)
            return None if count is None else int(count)
        case _:
            return number(value)


def _is_allowed(name: str, folders: list[str], field: str, value: object) -> bool:
    tree: Tree = {field: value}
    for folder in reversed(folders):
        tree = {folder: tree}
    try:
        OPTIMIZERS[name].settings.model_validate({"name": name, **tree})
    except ValidationError:
        return False
    return True


def _drop_defaults(given: Tree) -> None:
    """Remove keys without meaning from an optimizer object of theirs: versions, empty values, default switches."""
    for key, value in list(given.items()):
        if isinstance(value, dict):
            _drop_defaults(value)
        is_default = value is None or value == {} or (isinstance(value, bool) and value == (key in _ON_FOR_ALL))
        if is_default or str(key).startswith("__"):
            del given[key]
