"""kohya's run length, learning rates, optimizer, schedule, precision and loss."""

from __future__ import annotations

import re
from typing import Any

from modules.config.imports.kohya_values import Args, arguments_of, flag_of, number_of, pop_first
from modules.config.migrations.onetrainer_optimizers import drop_removed
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.diffusion.weightings import WEIGHTINGS
from modules.families.spec import FamilySpec
from modules.objectives.losses import LOSSES, DeltaSettings
from modules.optim.registry import OPTIMIZERS
from modules.system.problem import Problem, count, quote

_PRECISIONS = {"no": "float32", "fp16": "float16", "bf16": "bfloat16"}


def learning(given: Args, network: Args, family: FamilySpec, num_images: float, result: Tree, notes: Notes) -> None:
    """Convert the settings of the training itself; `num_images` is the number of images in an epoch, 0 if unknown."""
    _length(given, num_images, result, notes)
    _rates(given, network, family, result)
    optimizer(given, result, notes)
    schedule(given, result, notes)
    _precision(given, result)
    _loss(given, result, notes)
    noise(given, result)


def _length(given: Args, num_images: float, result: Tree, notes: Notes) -> None:
    """Convert the length and the batches.

    `max_train_epochs` takes precedence over steps, and steps over the `epoch` of kohya_ss. The metadata of a LoRA have
    the epochs that were trained (`num_epochs`) besides the steps.
    """
    epochs = number_of(pop_first(given, "max_train_epochs", "num_epochs"))
    steps, fields_epochs = number_of(pop_first(given, "max_train_steps")), number_of(pop_first(given, "epoch"))
    batch = number_of(pop_first(given, "train_batch_size", "batch_size_per_device", "total_batch_size"))
    if batch:
        put(result, "training.batch_size", int(batch))
    accumulation = number_of(pop_first(given, "gradient_accumulation_steps"))
    if accumulation and accumulation > 1:
        put(result, "training.accumulation_steps", int(accumulation))
    if not epochs and steps:
        epochs_of_steps(steps, max(1.0, batch or 1.0) * max(1.0, accumulation or 1.0), num_images, result, notes)
    elif epochs := epochs or fields_epochs:
        put(result, "training.epochs", int(epochs))
    if (seed := number_of(pop_first(given, "seed"))) is not None and seed >= 0:
        put(result, "general.seed", int(seed))
    norm = number_of(pop_first(given, "max_grad_norm"))
    if norm is not None:
        put(result, "training.clip_grad_norm", norm or None)


def epochs_of_steps(steps: float, images_a_step: float, num_images: float, result: Tree, notes: Notes) -> None:
    """Convert steps to epochs of `num_images` images; an unknown number of images (0) is reported."""
    if not num_images:
        message = f"The file sets {steps:g} steps instead of epochs, and its images were not found."
        notes.append(Problem("training.epochs", message, "warning", "Check the number of steps on the Run page."))
        return
    epochs = max(1, round(steps * images_a_step / num_images))
    put(result, "training.epochs", epochs)
    message = f"{steps:g} steps were converted to {count(epochs, 'epoch')} of {count(round(num_images), 'image')}."
    notes.append(Problem("training.epochs", message, "info"))


def _rates(given: Args, network: Args, family: FamilySpec, result: Tree) -> None:
    """Convert which parts are trained, with which rates, and the checkpointing of those that can be."""
    rate = number_of(pop_first(given, "learning_rate"))
    if rate is not None:
        put(result, "training.learning_rate", rate)
    encoders = [part for part in family.parts if part.role == "text_encoder"]
    rates = {family.denoiser.name: number_of(pop_first(given, "unet_lr"))}
    text = pop_first(given, "text_encoder_lr", "learning_rate_te")
    firsts = [number_of(v) for v in (text if isinstance(text, list) else [text])] or [None]
    singles = [number_of(pop_first(given, f"learning_rate_te{number}")) for number in (1, 2, 3)]
    for index, part in enumerate(encoders):
        shared = firsts[min(index, len(firsts) - 1)]
        single = singles[index] if index < len(singles) else None
        rates[part.name] = shared if single is None else single
    only_denoiser = flag_of(given.pop("network_train_unet_only", False))
    only_text = flag_of(given.pop("network_train_text_encoder_only", False))
    trains_text = flag_of(given.pop("train_text_encoder", False)) or result["training"]["trains"] != "full"
    trains_t5 = flag_of(network.pop("train_t5xxl", False))
    has_checkpointing = flag_of(given.pop("gradient_checkpointing", False))
    for part in (family.denoiser, *(p for p in encoders if p.trainable)):
        is_text = part.role == "text_encoder"
        value = rates[part.name]
        is_trained = value != 0 and not (only_denoiser and is_text) and not (only_text and not is_text)
        is_trained &= not is_text or (trains_text and (trains_t5 or not part.class_name.startswith("T5")))
        settings: dict[str, Any] = {"train": is_trained}
        if value:
            settings["learning_rate"] = value
        if has_checkpointing:
            settings["checkpointing"] = "block"
        put(result, f"parts.{part.name}", settings)
    fraction = number_of(pop_first(given, "stop_text_encoder_training", "stop_text_encoder_training_pct"))
    epochs = result.get("training", {}).get("epochs")
    if fraction and fraction > 0 and epochs:  # a fraction of the run, in percent
        span = {"n": round(epochs * min(fraction, 100) / 100, 2), "unit": "epoch"}
        for part in encoders:
            if part.trainable:
                put(result, f"parts.{part.name}.stop_after", span)


def _precision(given: Args, result: Tree) -> None:
    precision = str(pop_first(given, "mixed_precision") or "no")
    put(result, "training.precision", _PRECISIONS.get(precision, "float32"))
    for key, dtype in (("full_bf16", "bfloat16"), ("full_fp16", "float16")):
        if flag_of(given.pop(key, False)):
            for part in result["parts"].values():
                if "train" in part:
                    part["dtype"] = dtype


def _loss(given: Args, result: Tree, notes: Notes) -> None:
    _elementwise_loss(given, result, notes)
    # Metadata and configs have different names for a flag. A weighting with a gamma takes precedence.
    for name, spec in WEIGHTINGS.items():
        if spec.kohya_flag and flag_of(pop_first(given, f"{spec.kohya_flag}_loss", spec.kohya_flag)):
            put(result, "training.loss.weighting", name)
    for name, spec in WEIGHTINGS.items():
        if spec.kohya_gamma and (gamma := number_of(pop_first(given, spec.kohya_gamma))):
            put(result, "training.loss.weighting", name)
            put(result, "training.loss.gamma", gamma)


def _elementwise_loss(given: Args, result: Tree, notes: Notes) -> None:
    """Convert the kind of loss; sd-scripts' "huber" and "smooth_l1" are pseudo-Huber losses, by default with SNR."""
    theirs = str(pop_first(given, "loss_type") or "l2")
    schedule = str(pop_first(given, "huber_schedule") or "snr")
    delta, scale = (number_of(pop_first(given, key)) for key in ("huber_c", "huber_scale"))
    delta, scale = delta or 0.1, scale or 1.0  # sd-scripts' defaults
    spec = next((spec for spec in LOSSES.values() if spec.kohya_type == theirs), None)
    if spec is None:
        message = f"The loss {quote(theirs)} is not supported here; the squared error is used instead."
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


# kohya's noise and timesteps.

_TIMESTEPS = 1000
_DEFAULT_DISCOUNT = 0.3


def noise(given: Args, result: Tree) -> None:
    """Convert the noise and the range of timesteps.

    kohya_ss has both kinds of noise in its files and uses the one that `noise_offset_type` selects.
    """
    selected = str(pop_first(given, "noise_offset_type") or "").lower()
    _offset(given, result, is_used=selected != "multires")
    _pyramid(given, result, is_used=selected != "original")
    gamma = number_of(pop_first(given, "ip_noise_gamma"))
    is_random = flag_of(pop_first(given, "ip_noise_gamma_random_strength"))
    if gamma:
        put(result, "training.noise.input_perturbation", gamma)
        put(result, "training.noise.input_perturbation_random_strength", is_random)
    for key, path in (("min_timestep", "min_strength"), ("max_timestep", "max_strength")):
        timestep = number_of(pop_first(given, key))
        if timestep is not None and (timestep or key == "min_timestep"):
            put(result, f"training.noise.{path}", timestep / _TIMESTEPS)


def _offset(given: Args, result: Tree, *, is_used: bool) -> None:
    offset = number_of(pop_first(given, "noise_offset"))
    is_random = flag_of(pop_first(given, "noise_offset_random_strength"))
    adaptive = number_of(pop_first(given, "adaptive_noise_scale"))
    if offset and is_used:
        put(result, "training.noise.offset_weight", offset)
        put(result, "training.noise.offset_random_strength", is_random)
        put(result, "training.noise.offset_adaptive_scale", adaptive or 0.0)


def _pyramid(given: Args, result: Tree, *, is_used: bool) -> None:
    iterations = number_of(pop_first(given, "multires_noise_iterations"))
    discount = number_of(pop_first(given, "multires_noise_discount"))
    if iterations and is_used:
        put(result, "training.noise.pyramid_iterations", int(iterations))
        put(result, "training.noise.pyramid_discount", _DEFAULT_DISCOUNT if discount is None else discount)


# kohya's optimizer and its arguments.
#
# sd-scripts knows some optimizers by a name and all others by the path of their class, which usually has our name.

_PATH = "training.optimizer"
# Names in lower case letters and digits, where they are not ours without its underscores.
_OTHER_NAMES = {
    "sgdnesterov": "sgd",
    "sgdnesterov8bit": "sgd_8bit",
    "dadaptation": "dadapt_adam",
    "dadaptadampreprint": "dadapt_adam",
    "adamwschedulefree": "schedule_free_adamw",
    "sgdschedulefree": "schedule_free_sgd",
}
_MAX_CHARS = 4_000  # of the arguments after a class; the time to split them grows with the square
_SIMILAR = {"radamschedulefree": "schedule_free_adamw", "dadaptadanip": "dadapt_adan"}
_NAMES = {**{name.replace("_", ""): name for name in OPTIMIZERS}, **_OTHER_NAMES, **_SIMILAR}


def optimizer(given: Args, result: Tree, notes: Notes) -> None:
    """Convert the optimizer. Arguments that ours does not have stay in `given`, as `optimizer_args.NAME`."""
    theirs = pop_first(given, "optimizer_type", "optimizer")
    arguments = arguments_of(pop_first(given, "optimizer_args"))
    if theirs is None:
        theirs = "AdamW8bit" if flag_of(given.pop("use_8bit_adam", False)) else "AdamW"
    text, _, inside = str(theirs).partition("(")
    if 0 < len(inside) <= _MAX_CHARS:  # metadata contain the arguments after the class
        arguments |= arguments_of([p.strip() for p in re.split(r",(?![^(\[]*[)\]])", inside.rstrip(")"))])
    word = re.sub(r"[^a-z0-9]", "", text.rpartition(".")[2].lower())
    if word.startswith("paged"):
        arguments["is_paged"] = True
    word = word.removeprefix("paged").removesuffix("32bit")
    ours = _our_name(theirs, word, notes)
    if word.startswith("sgdnesterov"):  # sd-scripts' defaults
        arguments = {"nesterov": True, "momentum": 0.9} | arguments
    drop_removed(arguments, ours, notes)
    fields = OPTIMIZERS[ours].settings.model_fields
    settings: dict[str, Any] = {"name": ours}
    for name, keys in (("betas", ("beta1", "beta2", "beta3")), ("eps", ("eps", "eps2"))):
        if isinstance(values := arguments.get(name), tuple | list):
            del arguments[name]
            settings |= {key: value for key, value in zip(keys, values, strict=False) if key in fields}
    settings |= {key: arguments.pop(key) for key in list(arguments) if key in fields and key != "name"}
    if ours == "adafactor":  # sd-scripts and transformers switch the first two on
        for key, default in (("relative_step", True), ("scale_parameter", True), ("warmup_init", False)):
            settings[key] = flag_of(settings.get(key, default))
        settings["relative_step"] |= settings["warmup_init"]
    if "fused_back_pass" in fields and flag_of(given.get("fused_backward_pass")):
        settings["fused_back_pass"] = flag_of(given.pop("fused_backward_pass"))
    put(result, _PATH, settings)
    given.update({f"optimizer_args.{key}": value for key, value in arguments.items()})


def _our_name(theirs: object, word: str, notes: Notes) -> str:
    """Return our name of an optimizer; one that does not exist here is reported."""
    ours = _NAMES.get(word)
    if ours is None or word in _SIMILAR:
        ours = ours or "adamw"
        message = f"The optimizer {quote(theirs)} is not supported here; {OPTIMIZERS[ours].label} is used instead."
        notes.append(Problem(_PATH, message, "warning", "Check the learning rate: it may not be suitable for it."))
    return ours


# kohya's learning rate schedule.

_SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "polynomial": "polynomial",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "cosine_with_restarts": "cosine_with_hard_restarts",
    "inverse_sqrt": "inverse_sqrt",
    "warmup_stable_decay": "wsd",
    "adafactor": "adafactor",
}


def schedule(given: Args, result: Tree, notes: Notes) -> None:
    """Convert the schedule; the optimizer must be converted already, since it may choose its own rate."""
    theirs = str(pop_first(given, "lr_scheduler") or "constant").partition(":")[0]  # "adafactor:0.0001" in metadata
    own_class = str(pop_first(given, "lr_scheduler_type") or "")
    arguments = arguments_of(pop_first(given, "lr_scheduler_args"))
    cycles, power, min_factor, timescale, decay = (
        number_of(pop_first(given, key))
        for key in (
            "lr_scheduler_num_cycles",
            "lr_scheduler_power",
            "lr_scheduler_min_lr_ratio",
            "lr_scheduler_timescale",
            "lr_decay_steps",
        )
    )
    ours = _SCHEDULES.get(theirs)
    settings: dict[str, Any] = {"name": ours or "constant"}
    if result["training"]["optimizer"].get("relative_step"):
        settings = {"name": "adafactor"}
    elif own_class:
        lines = (f"{name} = {value!r}" for name, value in arguments.items())
        settings = {"name": "custom", "class_name": own_class, "arguments": "\n".join(lines)}
    elif ours is None:
        message = f"The schedule {quote(theirs)} is not supported here; constant is used instead."
        notes.append(Problem("training.schedule", message, "warning"))
    of_schedule: dict[str, dict[str, Any]] = {
        "cosine_with_hard_restarts": {"cycles": cycles},
        "polynomial": {"power": power},
        "inverse_sqrt": {"timescale_steps": int(timescale or 0)},
        # sd-scripts: steps, or a fraction below 1
        "wsd": {"decay_share": decay if decay and decay < 1 else None, "min_factor": min_factor},
        "cosine": {"min_factor": min_factor},
    }
    settings |= {name: value for name, value in of_schedule.get(settings["name"], {}).items() if value}
    if settings["name"] == "wsd" and decay and decay >= 1:
        message = f"The decay of {decay:g} steps is set as a fraction of the run here; the default is used."
        notes.append(Problem("training.schedule.decay_share", message, "warning"))
    put(result, "training.schedule", {**settings, **_warmup(given)})


def _warmup(given: Args) -> dict[str, Any]:
    percent = number_of(pop_first(given, "lr_warmup"))  # kohya_ss: percent of the run
    steps = number_of(pop_first(given, "lr_warmup_steps"))  # sd-scripts: steps, or a fraction below 1
    if steps and steps >= 1:
        return {"warmup_steps": int(steps)}
    return {"warmup_share": steps or min(1.0, (percent or 0) / 100)} if steps or percent else {}
