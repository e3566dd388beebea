"""AlignProp's seven keys, which OneTrainer removed in March 2025 and which are supported here."""

from __future__ import annotations

from modules.config.migrations.onetrainer_11.tables import remember
from modules.config.migrations.tree_moves import Notes, Tree, choose, number, put

# OneTrainer's defaults, which apply to keys missing from an old file. They differ from ours.
_THEIR_DEFAULTS = {
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
# The defaults of our version 1, which are not remembered. A migration never reads the current schema.
_OUR_DEFAULTS: Tree = {
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
    """Convert AlignProp's keys: the method and its reward model if it was on, otherwise remembered settings."""
    is_on = rest.pop("align_prop", False) is True
    given = {key: rest.pop(key) for key in _THEIR_DEFAULTS if key in rest}
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
    elif any(value != _THEIR_DEFAULTS[key] for key, value in given.items()) or scorer:
        kept = {key: value for key, value in _fields(given, scorer, strength).items() if value != _OUR_DEFAULTS[key]}
        remember(result, "training.method", "alignprop", kept)


def _fields(given: Tree, scorer: Tree, strength: float | None) -> Tree:
    """Return our method's fields. Invalid values are kept and reported later by the validation.

    Their loss was the distance of the score from 10 for the aesthetic reward model and from 1 for HPS.
    """
    values = _THEIR_DEFAULTS | given
    fields: Tree = {ours: values[theirs] for theirs, ours in _PLAIN.items()}
    num_steps, fraction = (number(values[key]) for key in ("align_prop_steps", "align_prop_truncate_steps"))
    fields |= _last_steps(num_steps, fraction, 1.0 if strength is None else strength)
    return fields | {"loss": "target", "target": _TARGETS[scorer.get("kind", "aesthetic")]}


def _last_steps(num_steps: float | None, fraction: float | None, strength: float) -> Tree:
    """Return how many of the last denoising steps are backpropagated through.

    For each training step OneTrainer sampled where in the denoising loop of N steps the gradient starts: the number of
    last steps with gradients was uniform from `N strength (1 - fraction)` to `N strength`, where strength is the max
    noising strength, usually 1. So the default fraction of 0.5 means K from 10 to 20 of 20.
    """
    if num_steps is None or fraction is None or num_steps < 1 or not (0 <= fraction <= 1 and 0 <= strength <= 1):
        return {}
    highest = max(int(num_steps * strength), 1)
    return {"truncate": "uniform", "last_steps": highest, "last_steps_min": max(int(highest * (1 - fraction)), 1)}
