"""OneTrainer's config version 11 into our version 1.

Every key is popped from a copy of the file as it is understood; what is left at the end is kept under
`unknown["onetrainer"]`, and what would have changed the training is named in a warning. Where the file is silent,
OneTrainer's defaults stand, not ours: that is what the file meant.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from modules.config.migrations.onetrainer_lists import concept_from, sample_from
from modules.config.migrations.taking import Notes, Tree, choose, give_back, move, number, put, taken_part
from modules.config.problem import Problem, shown
from modules.families.registry import FAMILIES

# What a file calls for, and our family of it. SD 2's own prediction is read from the model, as theirs is.
_FAMILIES = {
    "STABLE_DIFFUSION_15": "sd",
    "STABLE_DIFFUSION_20": "sd",
    "STABLE_DIFFUSION_20_BASE": "sd",
    "STABLE_DIFFUSION_21": "sd",
    "STABLE_DIFFUSION_21_BASE": "sd",
    "STABLE_DIFFUSION_XL_10_BASE": "sdxl",
}
_SIZE_STEPS_PX = {"sd": 8, "sdxl": 64}
_UNITS = {"EPOCH": "epoch", "STEP": "step", "SECOND": "second", "MINUTE": "minute", "HOUR": "hour"}
_DTYPES = {"FLOAT_32": "float32", "FLOAT_16": "float16", "BFLOAT_16": "bfloat16", "TFLOAT_32": "tfloat32"}
_SCHEDULES = {
    "CONSTANT": "constant",
    "LINEAR": "linear",
    "COSINE": "cosine",
    "COSINE_WITH_RESTARTS": "cosine",
    "COSINE_WITH_HARD_RESTARTS": "cosine",
    "REX": "linear",
}
_LAYERS = {"attn-mlp": "attention_mlp", "attn-only": "attention", "full": "all", "custom": "custom"}
_ADAMW = {"beta1": "beta1", "beta2": "beta2", "eps": "eps", "weight_decay": "weight_decay"}
_ADAFACTOR = {"decay_rate": "beta2_decay", "clip_threshold": "clip_threshold", "weight_decay": "weight_decay"}
_OPTIMIZER_SWITCHES = ("amsgrad", "maximize", "relative_step", "scale_parameter", "warmup_init")
_METHODS = {"LORA": "adapter", "FINE_TUNE": "full", "EMBEDDING": "embedding", "FINE_TUNE_VAE": "vae"}
_LORA_FORMATS = {"KOHYA_LORA": "kohya", "LEGACY_LORA": "kohya", "DIFFUSERS_LORA": "diffusers"}
# Old names and the raw default mean the single file that OneTrainer writes today; a pickle is never written here.
_SINGLE_FILES = ("LEGACY_SAFETENSORS", "SAFETENSORS", "ORIGINAL_SAFETENSORS", "CKPT")
_MODEL_FORMATS = {"DIFFUSERS": "diffusers", **dict.fromkeys(_SINGLE_FILES, "single_file")}

# Keys that say "nothing special" at these values; any other value would have changed the training.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "masked_training": (False,),
    "custom_conditioning_image": (False,),
    "offset_noise_weight": (0,),
    "perturbation_noise_weight": (0,),
    "generalized_offset_noise": (False,),
    "rescale_noise_scheduler_to_zero_terminal_snr": (False,),
    "force_v_prediction": (False,),
    "force_epsilon_prediction": (False,),
    "force_circular_padding": (False,),
    "min_noising_strength": (0,),
    "max_noising_strength": (1,),
    "timestep_distribution": ("UNIFORM",),
    "timestep_shift": (1,),
    "mse_strength": (1,),
    "mae_strength": (0,),
    "log_cosh_strength": (0,),
    "huber_strength": (0,),
    "loss_scaler": ("NONE",),
    "learning_rate_scaler": ("NONE",),
    "lora_decompose": (False,),
    "peft_type": ("LORA",),
    "layer_filter_regex": (False,),
    "additional_embeddings": ([],),
    "multi_gpu": (False,),
    "only_cache": (False,),
    "prevent_overwrites": (False,),
    "sample_skip_first": (0,),
    "save_skip_first": (0,),
    "align_prop": (False,),
}


# OneTrainer's defaults (version 11) where they are not ours.
_THEIR_DEFAULTS: Mapping[str, object] = {
    "training_method": "FINE_TUNE",
    "epochs": 100,
    "learning_rate": 3e-6,
    "learning_rate_warmup_steps": 200.0,
    "train_dtype": "FLOAT_16",
    "ema_update_step_interval": 5,
    "lora_alpha": 1.0,
    "layer_filter_preset": "full",
    "cache_dir": "workspace-cache/run",
    "sample_image_format": "JPG",
    "output_dtype": "FLOAT_32",
    "output_model_destination": "models/model.safetensors",
    "include_train_config": "NONE",
}


def to_darkroom_1(tree: Tree, notes: Notes) -> Tree:
    """Return our tree for an OneTrainer tree of version 11, whole or sparse; tells what it could not keep."""
    given = {k: v for k, v in tree.items() if not k.startswith("__")}
    rest = {**_THEIR_DEFAULTS, **given}
    if rest.pop("secrets", None):
        notes.append(Problem("secrets", "Passwords and tokens are not taken over into configs.", "info"))
    accumulation = number(rest.get("gradient_accumulation_steps", 1))
    if accumulation is not None:
        rest["gradient_accumulation_steps"] = int(accumulation)
    steps_per_update = max(1, int(accumulation or 1))
    result: Tree = {}
    for part in (_model, _training, _optimizer, _adapter, _data):
        part(rest, result, notes)
    _schedule(rest, result, notes, steps_per_update)
    _watching(rest, result, notes, steps_per_update)
    _parts(rest, result, notes, steps_per_update)
    _items(rest, result, notes, ("concepts", "concepts"), concept_from)
    _items(rest, result, notes, ("samples", "sampling.prompts"), sample_from)
    _keep_the_rest(rest, result, notes)
    return result


def _model(rest: Tree, result: Tree, notes: Notes) -> None:
    model_type = rest.get("model_type", "STABLE_DIFFUSION_15")
    family = _FAMILIES.get(model_type) if isinstance(model_type, str) else None
    put(result, "model.family", family or "sd")
    if family:
        rest.pop("model_type", None)
    elif not isinstance(model_type, str) or not model_type:
        rest.pop("model_type")
        notes.append(Problem("model.family", f"{shown(model_type)} is no kind of model; it is left out.", "warning"))
    else:  # kept under unknown, where preflight finds it and refuses to start
        notes.append(Problem("model.family", f"Models of the kind {model_type} are not supported yet.", "error"))
    if rest.pop("continue_last_backup", False):
        notes.append(
            Problem(
                "",
                "Backups of OneTrainer cannot be resumed; the LoRA inside one can be used as a file.",
                "info",
            )
        )
    move(rest, result, "base_model_name", "model.base_model")
    move(rest, result, "text_encoder_layer_skip", "model.clip_skip")
    if family == "sdxl":
        _only_one(rest, "text_encoder_2_layer_skip", result, "model.clip_skip", notes)
    move(rest, result, "offline_mode", "model.offline")
    move(rest, result, "huggingface_cache_dir", "model.hub_cache_dir")
    move(rest, result, "output_model_destination", "output.destination")
    choose(rest, result, "output_dtype", "output.dtype", _DTYPES, notes)
    if rest.get("training_method") == "FINE_TUNE":
        choose(rest, result, "output_model_format", "output.model_format", _MODEL_FORMATS, notes)
    else:
        choose(rest, result, "output_model_format", "output.format", _LORA_FORMATS, notes)
    choose(
        rest, result, "include_train_config", "output.embed_config",
        {"NONE": "none", "SETTINGS": "settings", "ALL": "all"}, notes,
    )  # fmt: skip
    for source in ("workspace_dir", "cache_dir", "tensorboard", "train_device", "temp_device"):
        move(rest, result, source, f"general.{source}")
    rest.pop("clear_cache_before_training", None)  # the cache is content-addressed: it is never stale


def _training(rest: Tree, result: Tree, notes: Notes) -> None:
    choose(rest, result, "training_method", "training.trains", _METHODS, notes)
    move(rest, result, "epochs", "training.epochs")
    move(rest, result, "batch_size", "training.batch_size")
    move(rest, result, "gradient_accumulation_steps", "training.accumulation_steps")
    move(rest, result, "learning_rate", "training.learning_rate")
    move(rest, result, "clip_grad_norm", "training.clip_norm")
    choose(rest, result, "train_dtype", "training.precision", _DTYPES, notes)
    choose(
        rest, result, "ema", "training.ema.mode",
        {"OFF": "off", "GPU": "train_device", "CPU": "temp_device"}, notes,
    )  # fmt: skip
    move(rest, result, "ema_decay", "training.ema.decay")
    move(rest, result, "ema_update_step_interval", "training.ema.update_every_steps")
    choose(
        rest, result, "loss_weight_fn", "training.loss.weighting",
        {"CONSTANT": "none", "MIN_SNR_GAMMA": "min_snr"}, notes,
    )  # fmt: skip
    move(rest, result, "loss_weight_strength", "training.loss.gamma")


def _optimizer(rest: Tree, result: Tree, notes: Notes) -> None:
    given = taken_part(rest, "optimizer", notes, "training.optimizer")
    name = given.pop("optimizer", "ADAMW")
    if name in ("ADAMW", "ADAFACTOR"):
        known = _ADAFACTOR if name == "ADAFACTOR" else _ADAMW
        values = {ours: given.pop(theirs, None) for theirs, ours in known.items()}
        settings: Tree = {"name": name.lower(), **{k: v for k, v in values.items() if v is not None}}
        unsupported = [key for key in _OPTIMIZER_SWITCHES if given.get(key)]
        if unsupported:
            notes.append(
                Problem(
                    "training.optimizer",
                    f"Not supported yet, and without effect: {', '.join(unsupported)}.",
                    "warning",
                )
            )
    else:
        given["optimizer"] = name
        settings = {"name": "adamw"}
        notes.append(
            Problem(
                "training.optimizer",
                f"The optimizer {name if isinstance(name, str) else shown(name)} is not supported yet; AdamW stands "
                "instead.",
                "warning",
                "Its learning rate may not suit AdamW: check it.",
            )
        )
    put(result, "training.optimizer", settings)
    give_back(rest, "optimizer", given)


def _schedule(rest: Tree, result: Tree, notes: Notes, steps_per_update: int) -> None:
    theirs = rest.get("learning_rate_scheduler")
    schedule: Tree = {}
    choose(rest, schedule, "learning_rate_scheduler", "name", _SCHEDULES, notes, where="training.schedule")
    schedule.setdefault("name", "constant")
    cycles = number(rest.get("learning_rate_cycles", 1.0))
    if theirs == "REX" or (theirs in ("COSINE_WITH_RESTARTS", "COSINE_WITH_HARD_RESTARTS") and cycles != 1):
        notes.append(
            Problem(
                "training.schedule",
                f"The schedule {theirs} is not supported yet; {schedule['name']} stands instead.",
                "warning",
            )
        )
    warmup = number(rest.pop("learning_rate_warmup_steps"))
    if warmup is None:
        notes.append(Problem("training.schedule.warmup_steps", "The warm-up is no number; there is none.", "warning"))
    elif warmup > 1:  # OneTrainer: above 1 batches, up to 1 a share of the run
        schedule["warmup_steps"] = math.ceil(warmup / steps_per_update)
    else:
        schedule["warmup_share"] = max(0, warmup)
    factor = rest.pop("learning_rate_min_factor", 0.0)
    if schedule["name"] != "constant":
        schedule["min_factor"] = factor
    put(result, "training.schedule", schedule)


def _adapter(rest: Tree, result: Tree, notes: Notes) -> None:
    move(rest, result, "lora_rank", "adapter.rank")
    move(rest, result, "lora_alpha", "adapter.alpha")
    move(rest, result, "dropout_probability", "adapter.dropout")
    choose(rest, result, "lora_weight_dtype", "adapter.dtype", _DTYPES, notes)
    put(result, "adapter.layers", "all")
    choose(rest, result, "layer_filter_preset", "adapter.layers", _LAYERS, notes)
    move(rest, result, "layer_filter", "adapter.custom_layers")
    move(rest, result, "lora_model_name", "adapter.start_from")


def _data(rest: Tree, result: Tree, notes: Notes) -> None:
    if "resolution" in rest:
        _resolution(rest.pop("resolution"), result, notes)
    move(rest, result, "aspect_ratio_bucketing", "data.aspect_buckets")
    move(rest, result, "latent_caching", "data.latent_cache")
    move(rest, result, "dataloader_threads", "data.loader_threads")
    put(result, "data.bucket_step_px", _SIZE_STEPS_PX[_family(result)])
    put(result, "data.max_aspect", 4.0)


def _resolution(given: object, result: Tree, notes: Notes) -> None:
    """Read "512", "512, 768" or one fixed "1024x768"; a number or a list is taken as well."""
    text = given.strip() if isinstance(given, str) else ""
    if fixed := re.fullmatch(r"(\d{1,5})\s*[xX]\s*(\d{1,5})", text):
        side_px = round(math.sqrt(int(fixed[1]) * int(fixed[2])))
        put(result, "data.resolution_px", [side_px])
        message = f"The fixed size {text} became the area of a {side_px} px square."
        notes.append(Problem("data.resolution_px", message, "warning"))
        return
    values = text.strip(" ,").split(",") if text else given if isinstance(given, list) else [given]
    sides = [number(v) for v in values]
    if sides and None not in sides:
        put(result, "data.resolution_px", sides)
    else:
        message = f"{shown(given)} is no resolution; the default stands instead."
        notes.append(Problem("data.resolution_px", message, "warning"))


def _watching(rest: Tree, result: Tree, notes: Notes, steps_per_update: int) -> None:
    for source, path, default in (
        ("sample_after", "sampling.every", (10, "MINUTE")),
        ("backup_after", "backup.every", (30, "MINUTE")),
        ("save_every", "backup.save_every", (0, "NEVER")),
        ("validate_after", "validation.every", (1, "EPOCH")),
    ):
        put(result, path, _every(rest, source, steps_per_update, default, notes, path))
    if not rest.pop("validation", False):
        put(result, "validation.every", {"unit": "never"})
    choose(rest, result, "sample_image_format", "sampling.image_format", {"PNG": "png", "JPG": "jpg"}, notes)
    count = rest.pop("rolling_backup_count", 3)
    put(result, "backup.keep", count if rest.pop("rolling_backup", False) else 0)
    move(rest, result, "backup_before_save", "backup.at_end")
    move(rest, result, "save_filename_prefix", "backup.save_prefix")


def _parts(rest: Tree, result: Tree, notes: Notes, steps_per_update: int) -> None:
    offloaded = False
    for name in (p.name for p in FAMILIES[_family(result)].parts):
        given = taken_part(rest, name, notes, f"parts.{name}")
        part: Tree = {}
        for key in ("train", "learning_rate"):
            move(given, part, key, key)
        choose(given, part, "weight_dtype", "dtype", _DTYPES, notes, where=f"parts.{name}.dtype")
        part["checkpointing"] = "block" if given.pop("gradient_checkpointing", True) is not False else "off"
        part["offload_activations"] = given.pop("activation_offloading", False)
        default = (30, "EPOCH") if name.startswith("text_encoder") else (0, "NEVER")
        part["stop_after"] = _every(
            given, "stop_training_after", steps_per_update, default, notes, f"parts.{name}.stop_after"
        )
        if name == "text_encoder":
            move(given, result, "dropout_probability", "data.caption_dropout")
        if name == "text_encoder_2":
            _only_one(given, "dropout_probability", result, "data.caption_dropout", notes)
        if name == "vae":
            move(given, result, "model_name", "model.vae_file")
        offloaded |= bool(given.get("offload_fraction"))
        put(result, f"parts.{name}", part)
        give_back(rest, name, given)
    if offloaded:
        notes.append(
            Problem("parts", "Offloading of layers is not supported yet; they stay where they are.", "warning")
        )


def _family(result: Tree) -> str:
    return str(result["model"]["family"])


def _only_one(rest: Tree, source: str, result: Tree, path: str, notes: Notes) -> None:
    """Pop what theirs sets for each text encoder and ours once for both; tells where the second one differs."""
    section, name = path.split(".")
    ours = result.get(section, {}).get(name, 0)
    theirs = rest.pop(source, ours)
    if theirs != ours:
        message = f"{source} = {shown(theirs)} of the second text encoder has no effect: {shown(ours)} stands for both."
        notes.append(Problem(path, message, "warning"))


def _every(rest: Tree, key: str, steps_per_update: int, default: tuple[float, str], notes: Notes, where: str) -> Tree:
    """Pop a number and its unit. Their step was a batch, ours is an optimizer update."""
    given, unit = rest.pop(key, default[0]), rest.pop(f"{key}_unit", default[1])
    n = number(given)
    if unit == "ALWAYS":
        return {"n": 1, "unit": "step"}
    if unit == "NEVER" or (given is None and key == "stop_training_after"):
        return {"unit": "never"}
    if n is None or not isinstance(unit, str) or unit not in _UNITS:
        message = f"{shown(given)} {shown(unit)} is no span of time; {default[0]} {default[1]} stands instead."
        notes.append(Problem(where, message, "warning"))
        n, unit = default
    if n <= 0 or unit == "NEVER":
        return {"unit": "never"}
    if unit == "STEP":
        n = math.ceil(n / steps_per_update)
    return {"n": n, "unit": _UNITS[unit]}


def _items(
    rest: Tree, result: Tree, notes: Notes, names: tuple[str, str], convert: Callable[[Tree, Notes, str], Tree]
) -> None:
    """Convert a list of theirs (`names[0]`) to one of ours (`names[1]`); what is not understood stays in theirs."""
    theirs, ours = names
    given = rest.pop(theirs, None)
    if given is not None and not isinstance(given, list):
        notes.append(Problem(ours, f"{shown(given)} is no list of {theirs}; it is left out.", "warning"))
    converted: list[Tree] = []
    leftovers: list[Tree] = []
    for item in given if isinstance(given, list) else []:
        if not isinstance(item, dict):
            notes.append(Problem(ours, f"{shown(item)} is none of the {theirs}; it is left out.", "warning"))
            continue
        copy = {k: v for k, v in item.items() if not k.startswith("__")}
        converted.append(convert(copy, notes, f"{ours}.{len(converted)}"))
        leftovers.append(copy)
    put(result, ours, converted)
    if any(leftovers):
        rest[theirs] = leftovers


def _keep_the_rest(rest: Tree, result: Tree, notes: Notes) -> None:
    cloud = rest.get("cloud")
    if isinstance(cloud, dict) and cloud.get("enabled"):
        notes.append(
            Problem("onetrainer.cloud", "Training in a cloud is not supported yet; the run stays here.", "warning")
        )
    for key, neutral in _NEUTRAL.items():
        if key in rest and rest[key] not in neutral:
            notes.append(
                Problem(
                    f"onetrainer.{key}",
                    f"{key} = {shown(rest[key])} is not supported yet and has no effect.",
                    "warning",
                )
            )
    if rest:
        result["unknown"] = {"onetrainer": rest}
        notes.append(
            Problem("", f"{len(rest)} settings of OneTrainer have no home here yet; the file keeps them.", "info")
        )
