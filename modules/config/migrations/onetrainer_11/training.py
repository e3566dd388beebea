"""OneTrainer's training settings: method, length, learning rate, precision, noise, loss, EMA."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.migrations.onetrainer_11.alignprop import alignprop_of
from modules.config.migrations.onetrainer_11.tables import DTYPES, choose_layers, move_all, remember
from modules.config.migrations.onetrainer_optimizers import (
    low_precision_updates_from,
    optimizer_from,
    remembered_optimizers,
)
from modules.config.migrations.onetrainer_schedules import schedule_from
from modules.config.migrations.tree_moves import Notes, Tree, choose, pop_object, put, put_back
from modules.objectives.losses import LOSSES

_METHODS = {"LORA": "adapter", "FINE_TUNE": "full", "EMBEDDING": "embedding", "FINE_TUNE_VAE": "vae"}
_PLAIN = {
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
    **{spec.onetrainer_key: f"training.loss.{spec.name}_strength" for spec in LOSSES.values() if spec.onetrainer_key},
    "huber_delta": "training.loss.huber_delta",
}
_SCALERS = {
    "NONE": "none",
    "BATCH": "batch",
    "GLOBAL_BATCH": "global_batch",
    "GRADIENT_ACCUMULATION": "accumulation",
    "BOTH": "both",
    "GLOBAL_BOTH": "global_both",
}
_WEIGHTINGS = {
    "CONSTANT": "none",
    "MIN_SNR_GAMMA": "min_snr",
    "DEBIASED_ESTIMATION": "debiased",
    "P2": "p2",
    "SIGMA": "sigma",
}
_DISTRIBUTIONS = ("UNIFORM", "SIGMOID", "LOGIT_NORMAL", "HEAVY_TAIL", "COS_MAP", "INVERTED_PARABOLA", "BETA")
_CHOICES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "train_dtype": ("training.precision", DTYPES),
    "fallback_train_dtype": ("training.fallback_precision", DTYPES),
    "attention_mechanism": (
        "training.attention",
        {"SDP": "sdpa", "FLASH": "flash", "CUDNN": "cudnn", "FLEX": "flex"},
    ),
    "ema": ("training.ema.mode", {"OFF": "off", "GPU": "train_device", "CPU": "temp_device"}),
    "timestep_distribution": ("training.noise.distribution", {name: name.lower() for name in _DISTRIBUTIONS}),
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
    put(result, "training.schedule", schedule_from(rest, notes, steps_per_update))
    choose(rest, result, "training_method", "training.trains", _METHODS, notes)
    for source, (path, names) in _CHOICES.items():
        choose(rest, result, source, path, names, notes)
    move_all(rest, result, _PLAIN)
    alignprop_of(rest, result, notes)


def _optimizer(rest: Tree, result: Tree, notes: Notes) -> None:
    given = pop_object(rest, "optimizer", notes, "training.optimizer")
    theirs = given.get("optimizer", "ADAMW")
    name = theirs.lower() if isinstance(theirs, str) else ""
    updates = low_precision_updates_from(given, name, are_bfloat16=_trains_bfloat16(rest))
    put(result, "training.small_weights", updates)
    chosen = optimizer_from(given, notes)
    put(result, "training.optimizer", chosen)
    put_back(rest, "optimizer", given)
    defaults = rest.pop("optimizer_defaults", None)
    if isinstance(defaults, dict):
        for other, fields in remembered_optimizers(defaults, chosen, notes).items():
            remember(result, "training.optimizer", other, fields)
        put_back(rest, "optimizer_defaults", defaults)


def _trains_bfloat16(rest: Tree) -> bool:
    """Return whether any trained weight is bfloat16."""
    if rest.get("training_method") == "LORA":
        return rest.get("lora_weight_dtype") == "BFLOAT_16"
    parts = [part for name in ("unet", "text_encoder", "text_encoder_2") if isinstance(part := rest.get(name), dict)]
    return any(part.get("train", True) is True and part.get("weight_dtype") == "BFLOAT_16" for part in parts)
