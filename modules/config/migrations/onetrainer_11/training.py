"""OneTrainer's training settings: method, length, learning rate, precision, noise, loss, EMA."""

from __future__ import annotations

import math
from collections.abc import Mapping

from modules.config.migrations.onetrainer_11.tables import DTYPES, choose_layers, family_of, move_all, remember
from modules.config.migrations.onetrainer_optimizers import (
    low_precision_updates_from,
    optimizer_from,
    remembered_optimizers,
)
from modules.config.migrations.tree_moves import (
    MovedKey,
    Notes,
    Tree,
    choose,
    number,
    pop_object,
    pop_switch,
    put,
    put_back,
)
from modules.diffusion.timesteps.distributions import DISTRIBUTIONS
from modules.diffusion.weightings import WEIGHTINGS
from modules.families.registry import FAMILIES
from modules.objectives.losses import LOSSES
from modules.optim.schedule_registry import SCHEDULES
from modules.system.problem import Problem, quote

_METHODS = {"LORA": "adapter", "FINE_TUNE": "full", "EMBEDDING": "embedding", "FINE_TUNE_VAE": "vae"}
_SCHEDULE = "training.schedule"
PLAIN = {
    "epochs": "training.epochs",
    "batch_size": "training.batch_size",
    "gradient_accumulation_steps": "training.accumulation_steps",
    "learning_rate": "training.learning_rate",
    "clip_grad_norm": "training.clip_norm",
    "enable_autocast_cache": "training.autocast_cache",
    "ema_decay": "training.ema.decay",
    "ema_update_step_interval": "training.ema.update_every_steps",
    "offset_noise_weight": "training.noise.offset_weight",
    "generalized_offset_noise": "training.noise.generalized_offset",
    "perturbation_noise_weight": "training.noise.perturbation_weight",
    "min_noising_strength": "training.noise.min_strength",
    "max_noising_strength": "training.noise.max_strength",
    "noising_weight": "training.noise.distribution_weight",
    "noising_bias": "training.noise.distribution_bias",
    "timestep_shift": "training.noise.shift",
    "loss_weight_strength": "training.loss.gamma",
    # To their present places, which all later steps keep: version 1 has no name for a new loss.
    **{s.onetrainer_key: f"training.loss.mix.{s.name}.strength" for s in LOSSES.values() if s.onetrainer_key},
    "huber_delta": "training.loss.mix.huber.delta",
}
_SCALERS = {
    "NONE": "none",
    "BATCH": "batch",
    "GLOBAL_BATCH": "global_batch",
    "GRADIENT_ACCUMULATION": "accumulation",
    "BOTH": "both",
    "GLOBAL_BOTH": "global_both",
}
_WEIGHTINGS = {spec.onetrainer: name for name, spec in WEIGHTINGS.items() if spec.onetrainer}
_CHOICES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "train_dtype": ("training.precision", DTYPES),
    "fallback_train_dtype": ("training.fallback_precision", DTYPES),
    "attention_mechanism": (
        "training.attention",
        {"SDP": "sdpa", "FLASH": "flash", "CUDNN": "cudnn", "FLEX": "flex"},
    ),
    "ema": ("training.ema.mode", {"OFF": "off", "GPU": "train_device", "CPU": "temp_device"}),
    "timestep_distribution": ("training.noise.distribution", {name.upper(): name for name in DISTRIBUTIONS}),
    "loss_weight_fn": ("training.loss.weighting", _WEIGHTINGS),
    "loss_scaler": ("training.loss.scaler", _SCALERS),
    "learning_rate_scaler": ("training.learning_rate_scaler", _SCALERS),
}


def training_of(rest: Tree, result: Tree, notes: Notes, steps_per_update: int) -> None:
    """Convert the settings of the training itself."""
    if rest.get("training_method") == "FINE_TUNE":
        paths = ("training.trained_layers", "training.trained_layer_names", "training.trained_layers_regex")
        choose_layers(rest, result, paths, notes)
    _optimizer(rest, result, notes)
    put(result, _SCHEDULE, schedule_from(rest, notes, steps_per_update))
    choose(rest, result, "training_method", "training.trains", _METHODS, notes)
    for source, (path, names) in _CHOICES.items():
        choose(rest, result, source, path, names, notes)
    move_all(rest, result, PLAIN)
    alignprop_of(rest, result, notes)


def _optimizer(rest: Tree, result: Tree, notes: Notes) -> None:
    given = pop_object(rest, "optimizer", notes, "training.optimizer")
    theirs = given.get("optimizer", "ADAMW")
    name = theirs.lower() if isinstance(theirs, str) else ""
    are_bfloat16 = _trains_bfloat16(rest, family_of(result))
    updates = low_precision_updates_from(given, name, notes, are_bfloat16=are_bfloat16)
    put(result, "training.small_weights", updates)
    chosen = optimizer_from(given, notes)
    put(result, "training.optimizer", chosen)
    put_back(rest, "optimizer", given)
    defaults = pop_object(rest, "optimizer_defaults", notes, "training.optimizer")
    for other, fields in remembered_optimizers(defaults, chosen, notes).items():
        remember(result, "training.optimizer", other, fields)
    put_back(rest, "optimizer_defaults", defaults)


def _trains_bfloat16(rest: Tree, family: str) -> bool:
    """Return whether any trained weight of the model is bfloat16."""
    if rest.get("training_method") == "LORA":
        return rest.get("lora_weight_dtype") == "BFLOAT_16"
    names = (part.name for part in FAMILIES[family].trainable_parts)
    parts = [part for name in names if isinstance(part := rest.get(name), dict)]
    return any(part.get("train", True) is True and part.get("weight_dtype") == "BFLOAT_16" for part in parts)


# AlignProp's seven keys, which OneTrainer removed in March 2025 and which are supported here.

# OneTrainer's defaults, which apply to keys missing from an old file. They differ from ours.
_THEIR_DEFAULTS = {
    "align_prop_probability": 0.1,
    "align_prop_weight": 0.01,
    "align_prop_steps": 20,
    "align_prop_truncate_steps": 0.5,
    "align_prop_cfg_scale": 7.0,
}
_OF_ALIGNPROP = {
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
    is_on = pop_switch(rest, "align_prop", notes, "training.method")
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
        put(result, "training.method", {"name": "alignprop", **_fields(given, scorer, strength, notes)})
    elif any(value != _THEIR_DEFAULTS[key] for key, value in given.items()) or scorer:
        fields = _fields(given, scorer, strength, notes)
        kept = {key: value for key, value in fields.items() if value != _OUR_DEFAULTS[key]}
        remember(result, "training.method", "alignprop", kept)


def _fields(given: Tree, scorer: Tree, strength: float | None, notes: Notes) -> Tree:
    """Return our method's fields. Invalid values are kept and reported later by the validation.

    Their loss was the distance of the score from 10 for the aesthetic reward model and from 1 for HPS.
    """
    values = _THEIR_DEFAULTS | given
    fields: Tree = {MovedKey(ours, theirs): values[theirs] for theirs, ours in _OF_ALIGNPROP.items()}
    num_steps, fraction = number(values["align_prop_steps"]), number(values["align_prop_truncate_steps"])
    if fraction is None or not 0 <= fraction <= 1:
        fraction = _THEIR_DEFAULTS["align_prop_truncate_steps"]
        theirs = quote(values["align_prop_truncate_steps"])
        message = f"align_prop_truncate_steps = {theirs} is not from 0 to 1; {fraction} is used instead."
        notes.append(Problem("training.method", message, "warning"))
    fields |= _last_steps(num_steps, fraction, 1.0 if strength is None else strength)
    return fields | {"loss": "target", "target": _TARGETS[scorer.get("kind", "aesthetic")]}


def _last_steps(num_steps: float | None, fraction: float, strength: float) -> Tree:
    """Return how many of the last denoising steps are backpropagated through.

    For each training step OneTrainer sampled where in the denoising loop of N steps the gradient starts: the number of
    last steps with gradients was uniform from `N strength (1 - fraction)` to `N strength`, where strength is the max
    noising strength, usually 1. So the default fraction of 0.5 means K from 10 to 20 of 20.
    """
    if num_steps is None or num_steps < 1 or not 0 <= strength <= 1:
        return {}
    highest = max(int(num_steps * strength), 1)
    return {"truncate": "uniform", "last_steps": highest, "last_steps_min": max(int(highest * (1 - fraction)), 1)}


# Convert OneTrainer's learning rate schedule to our variants.

_MAX_WARMUP_STEPS = 1_000_000
# Values of a key that mean nothing to schedules without such a field.
_DEFAULTS: Mapping[str, tuple[object, ...]] = {
    "learning_rate_min_factor": (0, None),
    "learning_rate_cycles": (1, None),
    "custom_learning_rate_scheduler": (None, ""),
    "scheduler_params": (None, []),
}


def schedule_from(rest: Tree, notes: Notes, steps_per_update: int) -> Tree:
    """Return our schedule for their keys, which are popped from `rest`; never raises.

    OneTrainer counts the warm-up in batches, of which `steps_per_update` make one of our steps; up to 1 it is a
    fraction of the run.
    """
    theirs = rest.pop("learning_rate_scheduler", "CONSTANT")
    schedule: Tree = {"name": "constant"}
    if isinstance(theirs, str) and theirs.lower() in SCHEDULES:
        schedule["name"] = theirs.lower()
    else:
        rest.update({} if theirs is None else {"learning_rate_scheduler": theirs})
        notes.append(
            Problem(
                _SCHEDULE,
                f"learning_rate_scheduler = {quote(theirs)} is not a known schedule; constant is used instead.",
                "warning",
            )
        )
    _convert_warmup(rest, schedule, notes, max(1, steps_per_update))
    fields = SCHEDULES[schedule["name"]].settings.model_fields
    if "min_factor" in fields:
        _convert_share(rest, schedule, notes)
    if "cycles" in fields:
        _convert_cycles(rest, schedule, notes)
    if "class_name" in fields:
        _convert_custom(rest, schedule, notes)
    for key, defaults in _DEFAULTS.items():
        if key in rest and rest[key] in defaults:
            del rest[key]
    return schedule


def _convert_warmup(rest: Tree, schedule: Tree, notes: Notes, steps_per_update: int) -> None:
    given = rest.pop("learning_rate_warmup_steps", 200.0)
    warmup = number(given)
    if warmup is None or warmup / steps_per_update > _MAX_WARMUP_STEPS:
        message = f"learning_rate_warmup_steps = {quote(given)} is not valid; warm-up is off."
        notes.append(Problem(f"{_SCHEDULE}.warmup_steps", message, "warning"))
    elif warmup > 1:
        schedule["warmup_steps"] = math.ceil(warmup / steps_per_update)
    else:
        schedule["warmup_share"] = max(0, warmup)


def _convert_share(rest: Tree, schedule: Tree, notes: Notes) -> None:
    given = rest.pop("learning_rate_min_factor", 0.0)
    factor = number(given)
    if factor is not None and 0 <= factor <= 1:
        schedule["min_factor"] = factor
    elif given is not None:
        message = f"learning_rate_min_factor = {quote(given)} is not from 0 to 1; the learning rate decays to 0."
        notes.append(Problem(f"{_SCHEDULE}.min_factor", message, "warning"))


def _convert_cycles(rest: Tree, schedule: Tree, notes: Notes) -> None:
    given = rest.pop("learning_rate_cycles", 1.0)
    cycles = number(given)
    if cycles is not None and 0 < cycles <= 10_000:
        schedule["cycles"] = cycles
    elif given is not None:
        message = f"learning_rate_cycles = {quote(given)} is not a number of cycles; 1 is used."
        notes.append(Problem(f"{_SCHEDULE}.cycles", message, "warning"))


def _convert_custom(rest: Tree, schedule: Tree, notes: Notes) -> None:
    name = rest.get("custom_learning_rate_scheduler")
    if isinstance(name, str):
        schedule["class_name"] = rest.pop("custom_learning_rate_scheduler")
    arguments = rest.get("scheduler_params")
    if arguments is None:
        return
    if isinstance(arguments, list) and all(_is_argument(a) for a in arguments):
        lines = (f"{a['key']} = {a['value']}" for a in arguments)
        schedule["arguments"] = "\n".join(lines)
        del rest["scheduler_params"]
    else:
        message = f"scheduler_params = {quote(arguments)} is not a list of names and values; it is left out."
        notes.append(Problem(f"{_SCHEDULE}.arguments", message, "warning"))


def _is_argument(given: object) -> bool:
    """Return whether this is a name and a value, each on one line."""
    return isinstance(given, dict) and all(
        isinstance(given.get(k), str | int | float) and "\n" not in str(given[k]) for k in ("key", "value")
    )
