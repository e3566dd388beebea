"""OneTrainer's nested optimizer object into our variants.

Each function pops what it understands from the object it is given; what is left says something that has no home here,
and is the caller's to keep. An empty value means OneTrainer's own for that optimizer, which our defaults are.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from modules.config.migrations.taking import Notes, Tree, number
from modules.optim.registry import OPTIMIZERS
from modules.settings.field import FieldRecord, records_of
from modules.system.problem import Problem, shown

# Optimizers that OneTrainer took out again, and what comes nearest to them.
_SUCCESSORS: dict[str, Tree] = {
    "lion_prodigy_adv": {"name": "prodigy_adv"},
    "simplified_ademamix": {"name": "adopt_adv", "simplified_ademamix": True},
}
# Theirs, where it is not simply our name.
_THEIRS = {
    "beta2_decay": "decay_rate",
    "use_ademamix": "use_AdEMAMix",
    "simplified_ademamix": "Simplified_AdEMAMix",
    "muon_with_aux_adam": "MuonWithAuxAdam",
}
# Switches of earlier versions, and the one of today that does the same.
_RENAMED = {"cautious_mask": "use_cautious", "grams_moment": "use_grams"}
_GONE = ("use_muon_pp", "use_focus", "cautious_mask", "grams_moment", "k_warmup_steps")
# What every optimizer object of theirs holds, whatever the optimizer is; all other switches are off.
_ON_FOR_ALL = {
    *("stochastic_rounding", "weight_decay_by_lr", "split_groups", "split_groups_mean", "factored", "factored_fp32"),
    *("use_stableadamw", "d_limiter", "use_schedulefree", "rms_rescaling"),
}
_ROUNDS_BY_DEFAULT = {
    *("adafactor", "prodigy_plus_schedule_free", "adamw_adv", "adopt_adv", "prodigy_adv", "signsgd_adv", "lion_adv"),
    *("muon_adv", "adamuon_adv"),
}
_ROUNDS_IF_ASKED = _ROUNDS_BY_DEFAULT | {"adam", "adamw", "came", "came_8bit"}


def optimizer_from(given: Tree, notes: Notes, where: str = "training.optimizer") -> Tree:
    """Return our optimizer for their object, as its name and what the object says; never raises.

    An optimizer that is not known stays in `given`, and AdamW stands in its place.
    """
    theirs = given.pop("optimizer", None)
    result = _named(theirs)
    if result is None:
        given["optimizer"] = theirs
        message = f"The optimizer {theirs if isinstance(theirs, str) else shown(theirs)} is not known; AdamW stands."
        notes.append(Problem(where, message, "warning", "Its learning rate may not suit AdamW: check it."))
        return {"name": "adamw"}
    if isinstance(theirs, str) and theirs.lower() in _SUCCESSORS:
        message = f"OneTrainer took the optimizer {theirs} out; {result['name']} comes nearest and stands instead."
        notes.append(Problem(where, message, "warning", "Check its settings and the learning rate."))
        for key in result:  # what makes it the nearest
            given.pop(_THEIRS.get(key, key), None)
    variant: type[BaseModel] = OPTIMIZERS[result["name"]].settings
    _follow_renamed(given, variant, notes, where)
    for record in records_of(variant):
        _take_field(given, result, record, notes, where)
    _drop_what_says_nothing(given)
    return result


def remembered_optimizers(defaults: Tree, chosen: Tree, notes: Notes, where: str = "training.optimizer") -> Tree:
    """Return what `Config.remembered` keeps for "training.optimizer": the name of each optimizer, and what was set.

    `defaults` is their `optimizer_defaults`, of which only what is not understood stays. The optimizer that is `chosen`
    is not among the remembered.
    """
    remembered: Tree = {}
    for theirs in sorted(defaults):
        if _named(theirs) is None or not isinstance(defaults[theirs], dict):
            continue
        left = {**defaults.pop(theirs), "optimizer": theirs}
        rounds = left.pop("stochastic_rounding", None)
        settings = optimizer_from(left, notes, where)
        name = settings.pop("name")
        if name in _ROUNDS_IF_ASKED and rounds not in (None, name in _ROUNDS_BY_DEFAULT):
            left["stochastic_rounding"] = rounds  # ours is one setting for all optimizers
        if left:
            defaults[theirs] = left
        plain = OPTIMIZERS[name].settings().model_dump()
        settings = {key: value for key, value in settings.items() if value != plain[key]}
        if settings and name != chosen.get("name"):
            remembered.setdefault(name, settings)
    return remembered


def small_weights_from(given: Tree, name: str, *, are_bfloat16: bool) -> Literal["master", "stochastic"]:
    """Pop `stochastic_rounding` of their optimizer object and return what `training.small_weights` makes of it.

    `name` is our name of the optimizer; `are_bfloat16` says whether any trained weight is kept in bfloat16, which alone
    is ever rounded so.
    """
    asked = given.pop("stochastic_rounding", None)
    name = _SUCCESSORS[name]["name"] if name in _SUCCESSORS else name
    rounds = name in _ROUNDS_BY_DEFAULT if asked is None else asked is True and name in _ROUNDS_IF_ASKED
    return "stochastic" if rounds and are_bfloat16 else "master"


def _named(theirs: object) -> Tree | None:
    """Return the beginning of our settings for a name of theirs; none for a name that neither knows."""
    if theirs is None:
        return {"name": "adamw"}
    if not isinstance(theirs, str):
        return None
    name = theirs.lower()
    return dict(_SUCCESSORS[name]) if name in _SUCCESSORS else {"name": name} if name in OPTIMIZERS else None


def _follow_renamed(given: Tree, variant: type[BaseModel], notes: Notes, where: str) -> None:
    """Carry switches of earlier versions over to those of today; tell of those that nothing corresponds to."""
    for old in _GONE:
        if not given.get(old):
            given.pop(old, None)
        elif (new := _RENAMED.get(old, "")) in variant.model_fields:
            given[new] = given.pop(old)
            notes.append(Problem(f"{where}.{new}", f"{old} is called {new} by now.", "info"))
        else:
            message = f"OneTrainer took the setting {old} out, and nothing here corresponds to it; it has no effect."
            notes.append(Problem(where, message, "warning"))


def _take_field(given: Tree, result: Tree, record: FieldRecord, notes: Notes, where: str) -> None:
    """Move one field, cast as OneTrainer casts it, if it is said and allowed."""
    *folders, name = record.path.split(".")
    source, target = given, result
    for folder in folders:
        inner = source.get(folder)
        if not isinstance(inner, dict):
            return
        source = inner
    theirs = _THEIRS.get(name, name)
    value = source.pop(theirs, None)
    if value is None or (name == "growth_rate" and value in ("inf", math.inf)):
        return
    cast = _cast(value, record)
    if cast is None or not _is_allowed(result["name"], folders, name, cast):
        default = "nothing" if record.default is None else shown(record.default)
        message = f"{theirs} = {shown(value)} is not allowed ({record.allowed or record.kind}); {default} stands."
        notes.append(Problem(f"{where}.{record.path}", message, "warning"))
        return
    for folder in folders:
        target = target.setdefault(folder, {})
    target[name] = cast


def _cast(value: object, record: FieldRecord) -> Any:
    """Return a value of theirs as our field holds it; none where it cannot be read as that."""
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


def _drop_what_says_nothing(given: Tree) -> None:
    """Drop what an optimizer object of theirs holds anyway: versions, empty values, switches at their resting place."""
    for key, value in list(given.items()):
        if isinstance(value, dict):
            _drop_what_says_nothing(value)
        rests = value is None or value == {} or (isinstance(value, bool) and value == (key in _ON_FOR_ALL))
        if rests or str(key).startswith("__"):
            del given[key]
