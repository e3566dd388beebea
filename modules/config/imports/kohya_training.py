"""kohya's run length, learning rates, optimizer, schedule, precision and loss."""

from __future__ import annotations

from typing import Any

from modules.config.imports.kohya_noise import noise
from modules.config.imports.kohya_optimizer import optimizer
from modules.config.imports.kohya_schedule import schedule
from modules.config.imports.kohya_values import Args, flag_of, number_of, pop_first
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.objectives.losses import LOSSES, DeltaSettings
from modules.system.problem import Problem, shown

_PRECISIONS = {"no": "float32", "fp16": "float16", "bf16": "bfloat16"}


def learning(given: Args, result: Tree, notes: Notes) -> None:
    """Convert the settings of the training itself."""
    _length(given, result, notes)
    _rates(given, result)
    optimizer(given, result, notes)
    schedule(given, result, notes)
    _precision(given, result)
    _loss(given, result, notes)
    noise(given, result)


def _length(given: Args, result: Tree, notes: Notes) -> None:
    epochs = number_of(pop_first(given, "max_train_epochs", "num_epochs", "epoch"))
    steps = number_of(pop_first(given, "max_train_steps"))
    if epochs:
        put(result, "training.epochs", int(epochs))
    elif steps:
        message = f"The file sets {steps:g} steps instead of epochs; the length of a run is set in epochs here."
        notes.append(Problem("training.epochs", message, "warning", "Check the number of steps on the Run page."))
    given.pop("max_train_epochs", None)
    batch = number_of(pop_first(given, "train_batch_size", "batch_size_per_device", "total_batch_size"))
    if batch:
        put(result, "training.batch_size", int(batch))
    accumulation = number_of(pop_first(given, "gradient_accumulation_steps"))
    if accumulation and accumulation > 1:
        put(result, "training.accumulation_steps", int(accumulation))
    if (seed := number_of(pop_first(given, "seed"))) is not None and seed >= 0:
        put(result, "general.seed", int(seed))
    norm = number_of(pop_first(given, "max_grad_norm"))
    if norm is not None:
        put(result, "training.clip_grad_norm", norm or None)


def _rates(given: Args, result: Tree) -> None:
    rate = number_of(pop_first(given, "learning_rate"))
    encoders = ("text_encoder", "text_encoder_2") if result["model"]["family"]["name"] == "sdxl" else ("text_encoder",)
    if rate is not None:
        put(result, "training.learning_rate", rate)
    own = {"unet": number_of(pop_first(given, "unet_lr"))}
    text = pop_first(given, "text_encoder_lr", "learning_rate_te")
    firsts = [number_of(v) for v in (text if isinstance(text, list) else [text])] or [None]
    singles = (number_of(pop_first(given, "learning_rate_te1")), number_of(pop_first(given, "learning_rate_te2")))
    for index, name in enumerate(encoders):
        shared = firsts[min(index, len(firsts) - 1)]
        own[name] = shared if singles[index] is None else singles[index]
    only_unet = flag_of(given.pop("network_train_unet_only", False))
    only_text = flag_of(given.pop("network_train_text_encoder_only", False))
    is_full = result["training"]["trains"] == "full"
    trains_text = flag_of(given.pop("train_text_encoder", False)) or not is_full
    has_checkpointing = flag_of(given.pop("gradient_checkpointing", False))
    for name, value in own.items():
        is_text = name != "unet"
        is_trained = value != 0 and not (only_unet and is_text) and not (only_text and not is_text)
        part: dict[str, Any] = {"train": is_trained and (trains_text or not is_text)}
        if value:
            part["learning_rate"] = value
        if has_checkpointing:
            part["checkpointing"] = "block"
        put(result, f"parts.{name}", part)
    fraction = number_of(pop_first(given, "stop_text_encoder_training", "stop_text_encoder_training_pct"))
    epochs = result.get("training", {}).get("epochs")
    if fraction and fraction > 0 and epochs:  # a fraction of the run, in percent
        for name in encoders:
            put(result, f"parts.{name}.stop_after", {"n": round(epochs * min(fraction, 100) / 100, 2), "unit": "epoch"})


def _precision(given: Args, result: Tree) -> None:
    precision = str(pop_first(given, "mixed_precision") or "no")
    put(result, "training.precision", _PRECISIONS.get(precision, "float32"))
    for key, dtype in (("full_bf16", "bfloat16"), ("full_fp16", "float16")):
        if flag_of(given.pop(key, False)):
            for part in result["parts"].values():
                part["dtype"] = dtype


def _loss(given: Args, result: Tree, notes: Notes) -> None:
    _elementwise_loss(given, result, notes)
    gamma = number_of(pop_first(given, "min_snr_gamma"))
    is_debiased = flag_of(pop_first(given, "debiased_estimation_loss", "debiased_estimation"))
    if gamma:
        put(result, "training.loss.weighting", "min_snr")
        put(result, "training.loss.gamma", gamma)
    elif is_debiased:
        put(result, "training.loss.weighting", "debiased")


def _elementwise_loss(given: Args, result: Tree, notes: Notes) -> None:
    """Convert the kind of loss; sd-scripts' "huber" and "smooth_l1" are pseudo-Huber losses, by default with SNR."""
    theirs = str(pop_first(given, "loss_type") or "l2")
    schedule = str(pop_first(given, "huber_schedule") or "snr")
    delta, scale = (number_of(pop_first(given, key)) for key in ("huber_c", "huber_scale"))
    delta, scale = delta or 0.1, scale or 1.0  # sd-scripts' defaults
    spec = next((spec for spec in LOSSES.values() if spec.kohya_type == theirs), None)
    if spec is None:
        message = f"The loss {shown(theirs)} is not supported here; the squared error is used instead."
        notes.append(Problem("training.loss.mix.mse.strength", message, "warning"))
        return
    for name in LOSSES:
        put(result, f"training.loss.mix.{name}.strength", 1.0 if name == spec.name else 0.0)
    if not issubclass(spec.settings, DeltaSettings):
        return
    path = f"training.loss.mix.{spec.name}"
    put(result, f"{path}.form", "pseudo_huber")
    put(result, f"{path}.schedule", schedule if schedule in ("constant", "exponential") else "snr")
    if scale != 1.0 and schedule == "constant":
        delta *= scale
    elif scale != 1.0 and schedule == "exponential":
        message = f"huber_scale = {scale:g} is not supported here with the exponential schedule; 1 is used instead."
        notes.append(Problem(f"{path}.delta", message, "warning"))
    put(result, f"{path}.delta", delta)
