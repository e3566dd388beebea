"""OneTrainer's model with its output and folders, and the adapter."""

from __future__ import annotations

from collections.abc import Mapping

from modules.adapters.registry import ADAPTERS, DEFAULT_ADAPTER
from modules.config.migrations.onetrainer_11 import tables
from modules.config.migrations.tree_moves import (
    Notes,
    Tree,
    choose,
    move,
    move_or,
    number,
    pop_switch,
    put,
)
from modules.diffusion.flow_convention import TokenShift
from modules.families.registry import FAMILIES
from modules.system.problem import Problem, quote

# OneTrainer's model, output and folders.

MODEL_TYPES: Mapping[str, tuple[str, str]] = {
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
    "Z_IMAGE": ("z_image", "text_to_image"),
    "FLUX_DEV_1": ("flux", "text_to_image"),
    "FLUX_FILL_DEV_1": ("flux", "inpainting"),
    "CHROMA_1": ("chroma", "text_to_image"),
    "FLUX_2": ("flux2", "text_to_image"),  # or klein, by the name of the base model
    "QWEN": ("qwen_image", "text_to_image"),
    "STABLE_DIFFUSION_3": ("sd3", "text_to_image"),
    "STABLE_DIFFUSION_35": ("sd3", "text_to_image"),
    "KREA_2": ("krea2", "text_to_image"),
    "ANIMA": ("anima", "text_to_image"),
    "PIXART_ALPHA": ("pixart", "text_to_image"),
    "PIXART_SIGMA": ("pixart", "text_to_image"),
    "SANA": ("sana", "text_to_image"),
    "ERNIE": ("ernie_image", "text_to_image"),
    "IDEOGRAM_4": ("ideogram4", "text_to_image"),
    "STABLE_CASCADE_1": ("stable_cascade", "text_to_image"),
    "WUERSTCHEN_2": ("wuerstchen", "text_to_image"),
    "HI_DREAM_FULL": ("hidream", "text_to_image"),
    "HUNYUAN_VIDEO": ("hunyuan_video", "text_to_image"),  # images alone
}
"""Our family and model variant for each model type. SD 2's prediction type is read from the model, as in OneTrainer."""
_KLEIN = "klein"
_USUAL_DEVICE = "cuda"  # which OneTrainer writes for any NVIDIA GPU; ours is "auto"
_T5_TOKENS = 77  # OneTrainer's default
_LORA_FORMATS = {
    "KOHYA_LORA": "kohya",
    "LEGACY_LORA": "kohya",
    "SAFETENSORS": "kohya",
    "DIFFUSERS_LORA": "diffusers",
    "COMFY_LORA": "comfyui",
}
_USUAL_LORA = ("LEGACY_LORA", "SAFETENSORS", None)  # what files had before formats could be chosen
# Current names, and old ones with the same meaning.
_MODEL_FORMATS = {
    "DIFFUSERS": "diffusers",
    "ORIGINAL_SINGLE_FILE": "single_file",
    "LEGACY_SAFETENSORS": "single_file",
    "SAFETENSORS": "single_file",
    "ORIGINAL_SAFETENSORS": "single_file",
    "COMFY_TRANSFORMER": "single_file",
}
# Formats that are not written here, and the closest one.
_NEAREST = {
    "INTERNAL": "diffusers",
    "ORIGINAL_TRANSFORMER": "single_file",
    "ORIGINAL_LORA": "kohya",
}
_PLAIN = {
    "base_model_name": "model.base_model",
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
    if pop_switch(rest, "continue_last_backup", notes, ""):
        message = "OneTrainer backups cannot be resumed; the LoRA file inside a backup can be used to start from."
        notes.append(Problem("", message, "info"))
    _prediction_and_clip_skip(rest, result, notes)
    if tables.family_of(result) == "flux":
        move_or(rest, result, "text_encoder_2_sequence_length", "model.text_tokens", _T5_TOKENS)
    elif tables.family_of(result) in tables.FLUX2:
        _text_tokens(rest, result, notes)
    elif tables.family_of(result) == "sd3":
        put(result, "model.text_tokens", _T5_TOKENS)
    elif tables.family_of(result) == tables.VIDEO and str(rest.get("frames", 1)) != "1":  # it is kept under unknown
        message = f"Videos are not supported (frames = {quote(rest['frames'])}), only images are trained."
        notes.append(Problem("model.family", message, "info"))
    if tables.family_of(result) in tables.WITH_T5_LAST:
        for key in ("text_encoder_3_layer_skip", "text_encoder_4_layer_skip"):
            if rest.get(key, 0) == 0:  # T5 and Llama have no clip skip here
                rest.pop(key, None)
    _dynamic_shift(rest, result, notes)
    if rest.get("train_device") == _USUAL_DEVICE:
        del rest["train_device"]
    tables.move_all(rest, result, _PLAIN)
    choose(rest, result, "output_dtype", "output.dtype", tables.OUTPUT_DTYPES, notes)
    _format(rest, result, notes)
    choose(
        rest, result, "include_train_config", "output.embed_config",
        {"NONE": "none", "SETTINGS": "settings", "ALL": "all"}, notes,
    )  # fmt: skip
    rest.pop("clear_cache_before_training", None)  # the cache is content-addressed: it is never stale


def _kind(rest: Tree, result: Tree, notes: Notes) -> None:
    model_type = rest.get("model_type", "STABLE_DIFFUSION_15")
    known = MODEL_TYPES.get(model_type) if isinstance(model_type, str) else None
    family, variant = known or ("sd", "text_to_image")
    if family in tables.FLUX2 and _KLEIN in str(rest.get("base_model_name", "")).lower():
        family = "flux2_klein"
    put(result, "model.family", family)
    if variant != "text_to_image":
        put(result, "model.variant", variant)
    if known:
        rest.pop("model_type", None)
    elif not isinstance(model_type, str) or not model_type:
        rest.pop("model_type")
        message = f"model_type = {quote(model_type)} is not a valid model type."
        notes.append(Problem("model.family", message, "warning"))
    else:  # kept under unknown, where preflight finds it and refuses the run
        message = f"{model_type} models are not supported; only settings shared with Stable Diffusion were read."
        notes.append(Problem("model.family", message, "warning"))


def _text_tokens(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the maximum tokens of a prompt, 512 by default in both programs."""
    tokens = rest.pop("text_encoder_sequence_length", None)
    if isinstance(tokens, int) and 64 <= tokens < 512:
        put(result, "model.text_tokens", tokens)
    elif tokens not in (None, 512):
        message = f"text_encoder_sequence_length {quote(tokens)} is not supported, but 64 to 512; 512 tokens are read."
        notes.append(Problem("model.family", message, "warning"))


def _dynamic_shift(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the shift by the size of an image, which replaces the constant one in OneTrainer; here they multiply.

    It is computed from the model's scheduler config. For models whose config has no such numbers OneTrainer computes it
    from FLUX.1's; these have no counterpart here.
    """
    family = FAMILIES[tables.family_of(result)]
    flow = family.process.flow
    if flow is None or not isinstance(flow.shift, TokenShift):
        if rest.get("dynamic_timestep_shifting") is True and family.name in tables.WITH_SHIFT_OF_FLUX:
            message = (
                f"dynamic_timestep_shifting is not supported for {family.label}, whose scheduler config does not "
                f"contain it: the shift is {quote(rest.get('timestep_shift', 1.0))} for images of all sizes."
            )
            notes.append(Problem("training.noise.shift", message, "warning", "Set the shift that you want."))
        return
    constant = number(rest.get("timestep_shift", 1.0))
    if rest.get("dynamic_timestep_shifting") is True and constant != 1:
        rest["timestep_shift"] = 1.0
        message = f"timestep_shift = {constant} had no effect with dynamic_timestep_shifting; it is 1 here."
        notes.append(Problem("training.noise.shift", message, "info"))
    move(rest, result, "dynamic_timestep_shifting", "training.noise.dynamic_shift")


def _prediction_and_clip_skip(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the prediction type and the clip skip, if the family has these settings; otherwise their keys stay."""
    fields = FAMILIES[tables.family_of(result)].settings.model_fields
    if "prediction_type" in fields:
        _prediction(rest, result, notes)
    if "clip_skip" in fields:
        move(rest, result, "text_encoder_layer_skip", "model.clip_skip")
        _second_clip_skip(rest, result)


def _prediction(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the prediction type and zero terminal SNR, which implies v-prediction in OneTrainer."""
    zero_snr, prediction = "model.zero_terminal_snr", "model.prediction"
    is_rescaled = pop_switch(rest, "rescale_noise_scheduler_to_zero_terminal_snr", notes, zero_snr)
    is_v = pop_switch(rest, "force_v_prediction", notes, prediction)
    is_epsilon = pop_switch(rest, "force_epsilon_prediction", notes, prediction)
    if is_rescaled:
        put(result, zero_snr, "on")
    if is_rescaled or is_v:
        put(result, prediction, "v_prediction")
    elif is_epsilon:
        put(result, prediction, "epsilon")
    if is_epsilon and (is_rescaled or is_v):
        message = "The file forces both v-prediction and epsilon prediction; v-prediction is used."
        notes.append(Problem(prediction, message, "warning"))


def _second_clip_skip(rest: Tree, result: Tree) -> None:
    """Convert the second clip skip: OneTrainer has one for each text encoder, ours is set only if it differs."""
    has_two = tables.family_of(result) in tables.WITH_TWO_CLIPS
    first = result["model"].get("clip_skip", 0)
    second = rest.pop("text_encoder_2_layer_skip", None)
    if second is None and has_two:
        second = 0
    if second != first and (has_two or second):
        put(result, "model.clip_skip_2", second, source="text_encoder_2_layer_skip")


def _format(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the output format; one that is not written here becomes the closest one, with a note."""
    method, given = rest.get("training_method"), rest.get("output_model_format")
    usual = FAMILIES[tables.family_of(result)].adapter_form
    if method == "EMBEDDING":
        if given == "SAFETENSORS":
            del rest["output_model_format"]
        return
    if method == "LORA" and given in _USUAL_LORA and usual != "kohya":
        rest.pop("output_model_format", None)
        put(result, "output.format", "auto")
        return
    path, names = ("output.format", _LORA_FORMATS) if method == "LORA" else ("output.model_format", _MODEL_FORMATS)
    nearest = _NEAREST.get(given, "") if isinstance(given, str) else ""
    nearest = usual if given == "ORIGINAL_LORA" else nearest
    if nearest in names.values():
        put(result, path, nearest)
        del rest["output_model_format"]
        message = f"output_model_format = {given} is not supported here; the closest format, {nearest}, is used."
        notes.append(Problem(path, message, "warning"))
        return
    choose(rest, result, "output_model_format", path, names, notes)


# OneTrainer's adapters, by the names in their records.

# TF32 is a compute mode, not a dtype of weights.
_DTYPES = {**tables.DTYPES, "TFLOAT_32": "float32"}
_AXIS = "decompose_output_axis"
_OF_ALL = {
    "dropout_probability": "dropout",
    "lora_model_name": "start_from",
    "bundle_additional_embeddings": "bundle_embeddings",
}


def adapter_of(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the adapter settings; the settings of adapter types that are not selected are remembered."""
    kind: Tree = {"name": DEFAULT_ADAPTER.name}
    known = {name: spec.onetrainer for name, spec in ADAPTERS.items() if spec.onetrainer is not None}
    choose(rest, kind, "peft_type", "name", {o.peft_type: name for name, o in known.items()}, notes, where="adapter")
    name = kind["name"]
    settings: Tree = {"name": name, "layers": "all"}
    chosen = known[name]
    chosen_fields = _pop_all(rest, chosen.fields)  # first: adapters can share a key
    others = {other: _pop_all(rest, names.fields) for other, names in known.items() if other != name}
    if "alpha" in ADAPTERS[name].settings.model_fields:
        settings |= _pop_all(rest, {"lora_alpha": "alpha"})
    rest.pop("lora_alpha", None)
    settings |= chosen_fields
    tables.move_all(rest, settings, _OF_ALL)
    choose(rest, settings, "lora_weight_dtype", "dtype", _DTYPES, notes, where="adapter.dtype")
    tables.choose_layers(rest, settings, ("layers", "custom_layers", "layers_regex"), notes, where="adapter.layers")
    if chosen.dora_on_outputs is not None:
        settings.setdefault(_AXIS, chosen.dora_on_outputs)
    settings |= chosen.fixed
    if chosen.note:
        path = ".".join(("adapter", *list(chosen.fixed)[:1]))
        notes.append(Problem(path, chosen.note, "info", chosen.advice))
    put(result, "adapter", settings)
    if not _has_usual_form(settings, tables.family_of(result)) and result.get("output", {}).get("format") == "auto":
        put(result, "output.format", "kohya")
    for other, fields in others.items():
        defaults = ADAPTERS[other].settings().model_dump()
        kept = {key: value for key, value in fields.items() if value != defaults[key]}
        if fields.get("decompose"):
            kept[_AXIS] = fields.get(_AXIS, known[other].dora_on_outputs)
        tables.remember(result, "adapter", other, kept)


def _has_usual_form(settings: Tree, family: str) -> bool:
    """Return whether an adapter can be written in the form of files that is usual for a family."""
    form = FAMILIES[family].adapter_form
    is_held = form != "diffusers" or not settings.get("decompose") or bool(settings.get(_AXIS))
    return is_held and form in ADAPTERS[settings["name"]].forms


def _pop_all(rest: Tree, places: Mapping[str, str]) -> Tree:
    popped: Tree = {}
    tables.move_all(rest, popped, places)
    return popped
