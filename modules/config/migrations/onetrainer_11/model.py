"""OneTrainer's model, output and folders."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.migrations.onetrainer_11.tables import OUTPUT_DTYPES, move_all
from modules.config.migrations.tree_moves import Notes, Tree, choose, put
from modules.system.problem import Problem, shown

# Our family and model variant for each model type. SD 2's prediction type is read from the model, as in OneTrainer.
_MODELS: Mapping[str, tuple[str, str]] = {
    "STABLE_DIFFUSION_15": ("sd", "text_to_image"),
    "STABLE_DIFFUSION_15_INPAINTING": ("sd", "inpainting"),
    "STABLE_DIFFUSION_20": ("sd", "text_to_image"),
    "STABLE_DIFFUSION_20_BASE": ("sd", "text_to_image"),
    "STABLE_DIFFUSION_20_INPAINTING": ("sd", "inpainting"),
    "STABLE_DIFFUSION_20_DEPTH": ("sd", "depth"),
    "STABLE_DIFFUSION_21": ("sd", "text_to_image"),
    "STABLE_DIFFUSION_21_BASE": ("sd", "text_to_image"),
    "STABLE_DIFFUSION_XL_10_BASE": ("sdxl", "text_to_image"),
    "STABLE_DIFFUSION_XL_10_BASE_INPAINTING": ("sdxl", "inpainting"),
}
_LORA_FORMATS = {
    "KOHYA_LORA": "kohya",
    "LEGACY_LORA": "kohya",
    "SAFETENSORS": "kohya",
    "DIFFUSERS_LORA": "diffusers",
}
# Current names, and old ones with the same meaning.
_MODEL_FORMATS = {
    "DIFFUSERS": "diffusers",
    "ORIGINAL_SINGLE_FILE": "single_file",
    "LEGACY_SAFETENSORS": "single_file",
    "SAFETENSORS": "single_file",
    "ORIGINAL_SAFETENSORS": "single_file",
}
# Formats that are not written here, and the closest one.
_NEAREST = {
    "INTERNAL": "diffusers",
    "ORIGINAL_LORA": "kohya",
    "COMFY_LORA": "kohya",
}
_PLAIN = {
    "base_model_name": "model.base_model",
    "text_encoder_layer_skip": "model.clip_skip",
    "compile": "model.compile",
    "force_circular_padding": "model.circular_padding",
    "offline_mode": "model.offline",
    "huggingface_cache_dir": "model.hub_cache_dir",
    "output_model_destination": "output.destination",
    "prevent_overwrites": "output.never_replace",
    "workspace_dir": "general.workspace_dir",
    "cache_dir": "general.cache_dir",
    "only_cache": "general.only_cache",
    "debug_mode": "general.debug_dump",
    "debug_dir": "general.debug_dir",
    "tensorboard": "general.tensorboard",
    "tensorboard_always_on": "general.tensorboard_always_on",
    "tensorboard_port": "general.tensorboard_port",
    "tensorboard_expose": "general.tensorboard_expose",
    "train_device": "general.train_device",
    "temp_device": "general.temp_device",
}


def model_of(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the settings of the model, the output and the folders."""
    _kind(rest, result, notes)
    if rest.pop("continue_last_backup", False):
        message = "OneTrainer backups cannot be resumed; the LoRA file inside a backup can be used to start from."
        notes.append(Problem("", message, "info"))
    _prediction(rest, result, notes)
    move_all(rest, result, _PLAIN)
    _second_clip_skip(rest, result)
    choose(rest, result, "output_dtype", "output.dtype", OUTPUT_DTYPES, notes)
    _format(rest, result, notes)
    choose(
        rest, result, "include_train_config", "output.embed_config",
        {"NONE": "none", "SETTINGS": "settings", "ALL": "all"}, notes,
    )  # fmt: skip
    rest.pop("clear_cache_before_training", None)  # the cache is content-addressed: it is never stale


def _kind(rest: Tree, result: Tree, notes: Notes) -> None:
    model_type = rest.get("model_type", "STABLE_DIFFUSION_15")
    known = _MODELS.get(model_type) if isinstance(model_type, str) else None
    family, variant = known or ("sd", "text_to_image")
    put(result, "model.family", family)
    if variant != "text_to_image":
        put(result, "model.variant", variant)
    if known:
        rest.pop("model_type", None)
    elif not isinstance(model_type, str) or not model_type:
        rest.pop("model_type")
        notes.append(Problem("model.family", f"{shown(model_type)} is not a valid model type.", "warning"))
    else:  # kept under unknown, where preflight finds it and refuses the run
        message = f"{model_type} models are not supported; only settings shared with Stable Diffusion were read."
        notes.append(Problem("model.family", message, "warning"))


def _prediction(rest: Tree, result: Tree, notes: Notes) -> None:
    """Their rescaling to zero terminal SNR implies v-prediction."""
    is_rescaled = rest.pop("rescale_noise_scheduler_to_zero_terminal_snr", False) is True
    is_v = rest.pop("force_v_prediction", False) is True
    is_epsilon = rest.pop("force_epsilon_prediction", False) is True
    if is_rescaled:
        put(result, "model.zero_terminal_snr", "on")
    if is_rescaled or is_v:
        put(result, "model.prediction", "v_prediction")
    elif is_epsilon:
        put(result, "model.prediction", "epsilon")
    if is_epsilon and (is_rescaled or is_v):
        message = "The file forces both v-prediction and epsilon prediction; v-prediction is used."
        notes.append(Problem("model.prediction", message, "warning"))


def _second_clip_skip(rest: Tree, result: Tree) -> None:
    """Theirs is set for each text encoder, ours for the second only if it differs."""
    is_sdxl = result["model"]["family"] == "sdxl"
    first = result["model"].get("clip_skip", 0)
    second = rest.pop("text_encoder_2_layer_skip", None)
    if second is None and is_sdxl:
        second = 0
    if second != first and (is_sdxl or second):
        put(result, "model.clip_skip_2", second)


def _format(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the output format; one that is not written here becomes the closest one, with a note."""
    method, given = rest.get("training_method"), rest.get("output_model_format")
    if method == "EMBEDDING":
        if given == "SAFETENSORS":
            del rest["output_model_format"]
        return
    path, names = ("output.format", _LORA_FORMATS) if method == "LORA" else ("output.model_format", _MODEL_FORMATS)
    nearest = _NEAREST.get(given, "") if isinstance(given, str) else ""
    if nearest in names.values():
        put(result, path, nearest)
        del rest["output_model_format"]
        message = f"output_model_format = {given} is not supported here; the closest format, {nearest}, is used."
        notes.append(Problem(path, message, "warning"))
        return
    choose(rest, result, "output_model_format", path, names, notes)
