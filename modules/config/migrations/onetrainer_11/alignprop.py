"""AlignProp's seven keys, which OneTrainer took out in March 2025: they mean something here again."""

from __future__ import annotations

from modules.config.migrations.onetrainer_11.tables import remember
from modules.config.migrations.taking import Notes, Tree, choose, number, put

# OneTrainer's own defaults, which an old file that leaves a key out means. They are not ours.
_USUAL = {
    "align_prop_probability": 0.1,
    "align_prop_weight": 0.01,
    "align_prop_steps": 20,
    "align_prop_truncate_steps": 0.5,
    "align_prop_cfg_scale": 7.0,
}
_PLAIN = {
    "align_prop_probability": "probability",
    "align_prop_weight": "weight",
    "align_prop_steps": "steps",
    "align_prop_cfg_scale": "guidance",
}
# The defaults of our version 1: what equals them is not worth remembering. A migration never asks today's schema.
_OURS: Tree = {
    "probability": 1.0,
    "steps": 20,
    "truncate": "uniform",
    "last_steps": 5,
    "last_steps_min": 1,
    "guidance": 7.0,
    "loss": "mean",
    "target": 10.0,
    "weight": 1.0,
    "hold_out": "none",
}
_SCORERS = {"AESTHETIC": "aesthetic", "HPS": "hps"}
_TARGETS = {"aesthetic": 10.0, "hps": 1.0}


def alignprop_of(rest: Tree, result: Tree, notes: Notes) -> None:
    """Take AlignProp's keys: the method and its reward model where it was on, else what was set for it, to be
    remembered.
    """
    is_on = rest.pop("align_prop", False) is True
    given = {key: rest.pop(key) for key in _USUAL if key in rest}
    if is_on:
        rest.setdefault("align_prop_loss", "AESTHETIC")
    elif rest.get("align_prop_loss") == "AESTHETIC":
        del rest["align_prop_loss"]
    strength = number(result.get("training", {}).get("noise", {}).get("max_strength"))
    scorer: Tree = {}
    choose(rest, scorer, "align_prop_loss", "kind", _SCORERS, notes, where="reward.scorers")
    if scorer:
        put(result, "reward.scorers", [scorer])
    if is_on:
        put(result, "training.method", {"name": "alignprop", **_fields(given, scorer, strength)})
    elif any(value != _USUAL[key] for key, value in given.items()) or scorer:
        kept = {key: value for key, value in _fields(given, scorer, strength).items() if value != _OURS[key]}
        remember(result, "training.method", "alignprop", kept)


def _fields(given: Tree, scorer: Tree, strength: float | None) -> Tree:
    """Return our method's fields. A value that fits none of them is left to the reader, who tells it.

    Their loss was the distance of the rating from 10 for the aesthetic reward model and from 1 for HPS.
    """
    values = _USUAL | given
    fields: Tree = {ours: values[theirs] for theirs, ours in _PLAIN.items()}
    num_steps, share = (number(values[key]) for key in ("align_prop_steps", "align_prop_truncate_steps"))
    fields |= _last_steps(num_steps, share, 1.0 if strength is None else strength)
    return fields | {"loss": "target", "target": _TARGETS[scorer.get("kind", "aesthetic")]}


def _last_steps(num_steps: float | None, share: float | None, strength: float) -> Tree:
    """Return how many of the last steps learn.

    OneTrainer drew, for each step of training, from where on the chain of N steps learns: the number of the last steps
    that do was uniform from `N strength (1 - share)` to `N strength`, strength being the highest share of noise that
    training saw, 1 as a rule. So the usual share of 0.5 means K from 10 to 20 of 20.
    """
    if num_steps is None or share is None or num_steps < 1 or not (0 <= share <= 1 and 0 <= strength <= 1):
        return {}
    highest = max(int(num_steps * strength), 1)
    return {"truncate": "uniform", "last_steps": highest, "last_steps_min": max(int(highest * (1 - share)), 1)}
