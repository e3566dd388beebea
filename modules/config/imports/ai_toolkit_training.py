"""ai-toolkit's training: length, rates, optimizer, precision, noise levels, loss, EMA."""

from __future__ import annotations

from typing import Any

from modules.config.imports.kohya_training import epochs_of_steps, optimizer, schedule
from modules.config.imports.kohya_values import Args, flag_of, is_set, number_of
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.diffusion.flow_convention import ConstantShift
from modules.diffusion.weightings import WEIGHTINGS
from modules.families.spec import FamilySpec
from modules.objectives.losses import LOSSES
from modules.optim.registry import OPTIMIZERS
from modules.system.problem import Problem, quote

_PRECISIONS = {
    **{"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16"},
    **{"fp32": "float32", "float32": "float32", "float": "float32"},
}
_TIMESTEPS = 1000
# Settings with no effect here, such as the scheduler, which follows from the model.
_WITHOUT_EFFECT = (
    "noise_scheduler",
    "unload_text_encoder",
    "sdp",
    "xformers",
    "force_first_sample",
    "switch_boundary_every",
)
_MIN_ADAPTIVE_RATE = 0.1  # ai-toolkit replaces a lower rate of Prodigy and D-Adaptation by 1
_EPS = 1e-6  # of Adam, AdamW, Prodigy and their 8-bit forms there
_EPS_OPTIMIZERS = ("adam", "adamw", "prodigy", "ademamix")
_LOSSES = {"mse": "mse", "mae": "mae"}
_DISTRIBUTIONS = {"sigmoid": "logit_normal", "linear": "uniform", "weighted": "uniform", "shift": "uniform"}


def training(train: Args, family: FamilySpec, num_images: float, result: Tree, notes: Notes) -> None:
    """Convert the settings of the training itself; `num_images` is the number of images in an epoch, 0 if unknown."""
    for key in _WITHOUT_EFFECT:
        train.pop(key, None)
    for method in ("diff_output_preservation", "blank_prompt_preservation"):
        if not flag_of(train.get(method)):
            for key in (f"{method}_class", f"{method}_multiplier"):
                train.pop(key, None)
    _length(train, num_images, result, notes)
    _parts(train, family, result, notes)
    _optimizer(train, result, notes)
    put(result, "training.precision", _PRECISIONS.get(str(train.pop("dtype", "fp32")), "float32"))
    if family.process.flow is not None:
        _noise_levels(train, family, result, notes)
    _range(train, result)
    _loss(train, result, notes)
    _ema(train, result)
    if offset := number_of(train.pop("noise_offset", 0)):
        put(result, "training.noise.offset_weight", offset)
    norm = number_of(train.pop("max_grad_norm", 1.0))
    put(result, "training.clip_grad_norm", norm or None)


def _length(train: Args, num_images: float, result: Tree, notes: Notes) -> None:
    """Convert steps to epochs, which needs the number of images."""
    steps = number_of(train.pop("steps", 1000)) or 1000
    batch = int(number_of(train.pop("batch_size", 1)) or 1)
    # A step of theirs is an update with `gradient_accumulation`, and a batch with the older setting.
    new, old = (max(1, int(number_of(train.pop(key, 1)) or 1)) for key in _ACCUMULATIONS)
    put(result, "training.batch_size", max(1, batch))
    if new * old > 1:
        put(result, "training.accumulation_steps", new * old)
    epochs_of_steps(steps, batch * new, num_images, result, notes)


_ACCUMULATIONS = ("gradient_accumulation", "gradient_accumulation_steps")


def _parts(train: Args, family: FamilySpec, result: Tree, notes: Notes) -> None:
    """Convert which parts are trained, with which rates, and the checkpointing of the denoiser."""
    rate = number_of(train.get("lr"))
    rate = 1e-6 if rate is None else rate
    trains = {"denoiser": flag_of(train.pop("train_unet", True)), "text_encoder": False}
    trains["text_encoder"] = flag_of(train.pop("train_text_encoder", False))
    rates = {
        "denoiser": number_of(train.pop("unet_lr", None)),
        "text_encoder": number_of(train.pop("text_encoder_lr", None)),
    }
    has_checkpointing = flag_of(train.pop("gradient_checkpointing", True))
    for part in family.parts:
        if part.role not in trains:
            continue
        if trains[part.role] and not part.trainable:
            message = f"The {part.label.lower()} is not trained here; it stays as it is."
            notes.append(Problem(f"parts.{part.name}.train", message, "warning"))
        if part.trainable:
            put(result, f"parts.{part.name}.train", trains[part.role])
            part_rate = rates[part.role]
            if part_rate is not None and part_rate != rate:
                put(result, f"parts.{part.name}.learning_rate", part_rate)
            if has_checkpointing:
                put(result, f"parts.{part.name}.checkpointing", "block")


def _optimizer(train: Args, result: Tree, notes: Notes) -> None:
    """Convert optimizer, rate and schedule: their names are kohya's, their defaults ai-toolkit's."""
    theirs = str(train.pop("optimizer", None) or "adamw")
    arguments = _object(train.pop("optimizer_params", None))
    word = theirs.lower()
    if word.startswith(_EPS_OPTIMIZERS):
        arguments.setdefault("eps", _EPS)
    if word == "adafactor":
        arguments = {"relative_step": False, "scale_parameter": False, "warmup_init": False} | arguments
    names = {"adamw8": "adamw8bit", "adam8": "adam8bit", "prodigy8bit": "prodigy"}
    given: Args = {"optimizer_type": names.get(word, theirs), "optimizer_args": arguments}
    optimizer(given, result, notes)
    rate = number_of(train.pop("lr", 1e-6))
    name = result["training"]["optimizer"]["name"]
    if rate is not None and rate < _MIN_ADAPTIVE_RATE and OPTIMIZERS[name].finds_its_rate:
        rate = 1.0
    if rate is not None:
        put(result, "training.learning_rate", rate)
    parameters = _object(train.pop("lr_scheduler_params", None))
    given |= {"lr_scheduler": str(train.pop("lr_scheduler", None) or "constant")}
    given |= {"lr_warmup_steps": parameters.pop("num_warmup_steps", None)}
    for key in ("total_iters", "T_max"):  # the length of the run
        parameters.pop(key, None)
    schedule(given, result, notes)
    left = {key.removeprefix("optimizer_args."): value for key, value in given.items() if is_set(value)}
    if left:
        train["optimizer_params"] = left
    if parameters:
        train["lr_scheduler_params"] = parameters


def _object(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _noise_levels(train: Args, family: FamilySpec, result: Tree, notes: Notes) -> None:
    """Convert how the noise levels of a flow model are drawn."""
    kind = str(train.get("timestep_type") or "sigmoid")
    ours = _DISTRIBUTIONS.get(kind)
    path = "training.noise.distribution"
    if ours is None:
        message = f"timestep_type {quote(kind)} is not supported here; sigmoid is used instead."
        notes.append(Problem(path, message, "warning"))
        put(result, path, "logit_normal")
        return
    train.pop("timestep_type", None)
    put(result, path, ours)
    if kind == "weighted":
        message = (
            "timestep_type weighted multiplies the loss by a fixed table of weights; here all noise levels weigh 1."
        )
        notes.append(Problem(path, message, "warning"))
    if kind == "shift":
        flow = family.process.flow
        if flow is not None and isinstance(flow.shift, ConstantShift):
            put(result, "training.noise.shift", flow.shift.value)
        else:
            put(result, "training.noise.dynamic_shift", True)
    if train.get("content_or_style") == "balanced":
        del train["content_or_style"]


def _range(train: Args, result: Tree) -> None:
    lowest, highest = (number_of(train.pop(key, None)) for key in ("min_denoising_steps", "max_denoising_steps"))
    if lowest:
        put(result, "training.noise.min_strength", lowest / _TIMESTEPS)
    if highest is not None and highest < _TIMESTEPS - 1:
        put(result, "training.noise.max_strength", highest / _TIMESTEPS)


def _loss(train: Args, result: Tree, notes: Notes) -> None:
    kind = str(train.get("loss_type") or "mse")
    if kind in _LOSSES:
        train.pop("loss_type", None)
        for name in LOSSES:
            put(result, f"training.loss.mix.{name}.strength", 1.0 if name == _LOSSES[kind] else 0.0)
    else:
        message = f"The loss {quote(kind)} is not supported here; the squared error is used instead."
        notes.append(Problem("training.loss.mix.mse.strength", message, "warning"))
    gamma = number_of(train.pop("min_snr_gamma", None))
    if gamma:
        name = next(name for name, spec in WEIGHTINGS.items() if spec.kohya_gamma == "min_snr_gamma")
        put(result, "training.loss.weighting", name)
        put(result, "training.loss.gamma", gamma)


def _ema(train: Args, result: Tree) -> None:
    settings = train.get("ema_config")
    if not isinstance(settings, dict):
        return
    decay = number_of(settings.pop("ema_decay", 0.999))
    if flag_of(settings.pop("use_ema", False)):
        put(result, "training.ema.mode", "train_device")
        put(result, "training.ema.decay", 0.999 if decay is None else decay)
