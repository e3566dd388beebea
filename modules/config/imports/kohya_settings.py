"""The settings of kohya's programs (kohya_ss, sd-scripts) as a tree of ours.

Source for the keys: the public documentation of sd-scripts (train_network, config_README). Every key is popped from a
copy as it is converted; keys that are left and set are kept under `unknown["kohya"]` and reported. Missing keys have
the defaults of sd-scripts, with which the run was made.
"""

from __future__ import annotations

import re
from typing import Any

from modules.adapters.registry import ADAPTERS, DEFAULT_ADAPTER
from modules.config.imports.control_images import set_variant
from modules.config.imports.kohya_dataset import images, images_of_epoch, lift_dataset_settings
from modules.config.imports.kohya_flow import family_of_type, flow, model_type_of, report_unsupported
from modules.config.imports.kohya_ranks import adapter_options
from modules.config.imports.kohya_samples import sample_prompts
from modules.config.imports.kohya_training import learning
from modules.config.imports.kohya_values import (
    Args,
    arguments_of,
    drop_wrong_numbers,
    flag_of,
    is_set,
    last_part,
    number_of,
    pop_first,
)
from modules.config.migrations.chain import NEWEST_DARKROOM
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.families.kinds.identify import identify
from modules.families.registry import FAMILIES
from modules.families.spec import FamilySpec
from modules.system.paths import from_root
from modules.system.problem import Problem

# The numbers that a file most likely sets. Rates of text encoders may be lists, warm-ups may be fractions.
_NUMBERS_NAMES = """
    network_dim network_alpha learning_rate unet_lr max_train_epochs max_train_steps epoch train_batch_size
    gradient_accumulation_steps seed clip_skip min_snr_gamma noise_offset discrete_flow_shift guidance_scale
    save_every_n_epochs save_every_n_steps sample_every_n_epochs sample_every_n_steps blocks_to_swap
"""
_NAMES_OF_NUMBERS = tuple(_NUMBERS_NAMES.split())
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "float": "float32", "fp32": "float32"}
_UNSUPPORTED = ("full", "native", "ia3", "dylora", "glora", "lora_fa")
# LyCORIS' presets of layers.
_LAYERS = {"full": "all", "full-lin": "all", "attn-mlp": "attention_mlp", "attn-only": "attention"}
# Paths, logging and hardware: settings that do not change a run here.
_NOT_SETTINGS_NAMES = """
    logging_dir log_with log_prefix log_tracker_name log_tracker_config wandb_api_key wandb_run_name
    num_cpu_threads_per_process num_processes num_machines multi_gpu gpu_ids main_process_port
    dynamo_mode dynamo_use_dynamic dynamo_use_fullgraph extra_accelerate_launch_args
    persistent_workers persistent_data_loader_workers lowram highvram model_list train_toml train_toml_path
    config_file huggingface_token huggingface_repo_id huggingface_repo_type huggingface_repo_visibility
    huggingface_path_in_repo no_metadata metadata_author metadata_description metadata_license metadata_tags
    metadata_title additional_parameters console_log_level console_log_file output_config
    prior_loss_weight skip_cache_check max_token_length vae_batch_size no_half_vae sdxl_no_half_vae
    use_safetensors
"""
# Values that every complete file has and that change nothing.
_WITHOUT_EFFECT = {"unit": 1, "train_on_input": True, "token_warmup_min": 1, "initial_epoch": 1}
_NOT_SETTINGS = frozenset(_NOT_SETTINGS_NAMES.split())


def tree_of_kohya(args: Args, notes: Notes) -> Tree:
    """Return our tree for kohya's flat settings. Total: values that do not fit are reported and left out."""
    given = {key: value for key, value in args.items() if isinstance(key, str)}
    result = convert_arguments(given, notes)
    given.pop("save_model_as", None)
    for key, value in _WITHOUT_EFFECT.items():
        if given.get(key) == value:
            del given[key]
    rest = {key: v for key, v in given.items() if key not in _NOT_SETTINGS and is_set(v) and v not in (False, 0)}
    if rest:
        result["unknown"] = {"kohya": rest}
        names = ", ".join(sorted(rest))
        notes.append(Problem("", f"These kohya settings are not supported and are kept in the file: {names}.", "info"))
    return result


def convert_arguments(given: Args, notes: Notes) -> Tree:
    """Return our tree; every setting that has a counterpart here is popped from `given`."""
    drop_wrong_numbers(given, _NAMES_OF_NUMBERS, notes)
    lift_dataset_settings(given, notes)
    result: Tree = {"darkroom_version": NEWEST_DARKROOM}
    network = arguments_of(given.pop("network_args", None))
    _model(given, result, notes)
    _speed(given, result, notes)
    family = FAMILIES[result["model"]["family"]["name"]]
    _adapter(given, network, result, notes)
    images(given, result, notes)
    learning(given, network, family, images_of_epoch(result["concepts"]), result, notes)
    if family.process.flow is not None:
        flow(given, network, family, result, notes)
    set_variant(result["concepts"], result, notes)  # after the files of flow models, whose names may state the variant
    given.update({f"network_args.{key}": value for key, value in network.items()})
    sampling_and_saving(given, family, result, notes)
    return result


def _model(given: Args, result: Tree, notes: Notes) -> None:
    _family(given, result, notes)
    base = pop_first(given, "pretrained_model_name_or_path", "sd_model_name")
    if base is not None:
        put(result, "model.base_model", str(base))
    if (vae := pop_first(given, "vae", "vae_name")) is not None:
        put(result, "parts.vae.file", str(vae))
    name, folder = pop_first(given, "output_name"), pop_first(given, "output_dir")
    if name is not None or folder is not None:
        put(result, "output.destination", f"{folder or 'models'}/{last_part(name) or 'last'}.safetensors")
    if (dtype := _DTYPES.get(str(given.pop("save_precision", "")))) is not None:
        put(result, "output.dtype", dtype)
    if (comment := pop_first(given, "training_comment")) is not None:
        put(result, "general.notes", str(comment))


def _family(given: Args, result: Tree, notes: Notes) -> None:
    """Convert the family and the settings that only SD and SDXL have."""
    model_type = model_type_of(given)
    version = str(given.pop("base_model_version", ""))
    flag = pop_first(given, "sdxl", "SDXL")
    is_sdxl = flag_of(flag) or version.startswith("sdxl")
    is_v2 = flag_of(given.pop("v2", False))
    family = family_of_type(model_type)
    if flag is None and not (model_type or version or is_v2):
        is_sdxl = _is_sdxl(given, notes)
    put(result, "model.family.name", family.name if family is not None else "sdxl" if is_sdxl else "sd")
    if family is not None:
        return
    if model_type:
        report_unsupported(model_type, given, notes)
    if is_v2 and not any(is_set(given.get(key)) for key in ("pretrained_model_name_or_path", "sd_model_name")):
        notes.append(Problem("model.base_model", "The file does not name its base model, an SD 2 model.", "warning"))
    if flag_of(given.pop("v_parameterization", False)) or version.endswith("_v"):
        put(result, "model.family.prediction_type", "v_prediction")
    if flag_of(given.pop("zero_terminal_snr", False)):
        put(result, "model.family.zero_terminal_snr", "on")
    skip = number_of(given.pop("clip_skip", None))
    if skip is not None and is_sdxl:
        message = f"clip_skip = {skip:g} has no effect: sd-scripts does not use it for Stable Diffusion XL."
        notes.append(Problem("model.family.clip_skip", message, "info"))
    elif skip is not None:  # kohya's is the layer used, counted from the end; ours is the number of layers skipped
        ours = max(0, int(skip) - 1)
        put(result, "model.family.clip_skip", ours)
        message = f"kohya's clip skip {skip:g} is {ours} here: the number of layers that are skipped, counted from 0."
        notes.append(Problem("model.family.clip_skip", message, "info"))


def _is_sdxl(given: Args, notes: Notes) -> bool:
    """Return whether the base model is an SDXL, by its file or folder, else by its name.

    sd-scripts has scripts of its own for SDXL, and their settings do not state it.
    """
    named = (given.get(key) for key in ("pretrained_model_name_or_path", "sd_model_name"))
    base = next((str(value) for value in named if is_set(value)), "")
    try:
        is_here = bool(base) and from_root(base).exists()
    except (OSError, ValueError):
        is_here = False
    name = re.split(r"[\\/]", base)[-1].lower()
    is_sdxl = identify(from_root(base)).family == "sdxl" if is_here else "xl" in name
    if is_sdxl:
        sign = "files" if is_here else "name"
        notes.append(Problem("model.family", f"The base model is Stable Diffusion XL by its {sign}.", "info"))
    return is_sdxl


def _speed(given: Args, result: Tree, notes: Notes) -> None:
    """Convert compiling and the attention: all of kohya's implementations have the same results as PyTorch's choice."""
    backend = str(given.pop("dynamo_backend", "") or "no").lower()
    if flag_of(given.pop("torch_compile", False)) or backend != "no":
        put(result, "model.compile", "on")
    gui = str(given.get("xformers", "") or "").lower()  # kohya_ss has one field for all of them
    named = [name for name in ("xformers", "mem_eff_attn") if flag_of(given.pop(name, False)) or gui == name]
    given.pop("sdpa", None)
    if named:
        message = f"{named[0]} is not used here; PyTorch's own attention, with the same results, is used."
        notes.append(Problem("training.attention", message, "info"))


# Arguments of LyCORIS, which kohya_ss also has as settings, and our fields.
_SWITCHES = {
    "decompose_both": "decompose_both",
    "full_matrix": "full_matrix",
    "rescaled": "rescale",
    "use_tucker": "use_tucker",
    "use_cp": "use_tucker",
    "use_conv_cp": "use_tucker",
}
_NUMBERS = {"factor": "factor", "constraint": "constraint", "constrain": "constraint"}


def _type_settings(given: Args, network: Args, result: Tree, *, name: str, dim: float | None) -> None:
    """Convert the settings that only one type of adapter has, popped from `given` and `network`."""
    fields = ADAPTERS[name].settings.model_fields
    settings: dict[str, object] = {"block_size": int(dim)} if dim else {}
    for key, field in (*_SWITCHES.items(), *_NUMBERS.items()):
        value = pop_first({"": network.pop(key, None), key: given.pop(key, None)}, "", key)
        read = flag_of(value) if key in _SWITCHES else number_of(value)
        if read:
            settings[field] = int(read) if field == "factor" else read
    for field, value in settings.items():
        if field in fields:
            put(result, f"adapter.{field}", value)


def _layers(given: Args, network: Args, result: Tree, kind: str) -> bool:
    """Convert whether convolutions have an adapter, and LyCORIS' preset of layers; an unknown one is reported.

    Returns whether layers outside of the attention have an adapter.
    """
    # kohya_ss has the field for every type, but uses it only for these; an argument of the network always counts.
    conv_rank = number_of(given.get("conv_dim")) if "c3lier" in kind or "lycoris" in kind else None
    conv_rank = conv_rank or number_of(network.get("conv_dim"))
    has_convolutions = "locon" in kind or (conv_rank or 0) > 0
    put(result, "adapter.layers", "all" if has_convolutions else "attention_mlp")
    if not has_convolutions:
        for key in ("conv_dim", "conv_alpha"):
            given.pop(key, None), network.pop(key, None)
    for source, key in ((given, "LyCORIS_preset"), (network, "preset")):
        layers = _LAYERS.get(str(source.get(key)))
        if layers is not None:
            del source[key]
            if layers != "all":
                put(result, "adapter.layers", layers)
                has_convolutions = False
    return has_convolutions


def _network_kind(given: Args, network: Args, result: Tree, notes: Notes) -> tuple[str, str]:
    """Return our type of adapter, and kohya's name of it; a type that does not exist here is reported."""
    kind = f"{given.pop('LoRA_type', '')} {given.pop('network_module', '')} {network.pop('algo', '')}".lower()
    words = ((word, name) for name, spec in ADAPTERS.items() for word in spec.kohya)
    name = next((name for word, name in words if word in kind), DEFAULT_ADAPTER.name)
    put(result, "adapter.name", name)
    if missing := next((word for word in re.split(r"[\s./]+", kind) if word in _UNSUPPORTED), ""):
        message = f"The network {missing} is not supported here; a LoRA is trained instead."
        notes.append(Problem("adapter.name", message, "warning"))
    if "boft" in kind:
        message = "BOFT is not supported: the adapter is an OFT, whose blocks are rotated once."
        notes.append(Problem("adapter.name", message, "warning"))
    return name, kind


def _adapter(given: Args, network: Args, result: Tree, notes: Notes) -> None:
    is_adapter = any(is_set(given.get(key)) for key in ("LoRA_type", "network_module", "network_dim"))
    if not is_adapter:
        is_embedding = any(is_set(given.get(key)) for key in ("token_string", "init_word"))
        put(result, "training.trains", "embedding" if is_embedding else "full")
        is_folder = str(given.get("save_model_as", "")).startswith("diffusers")  # or diffusers_safetensors
        put(result, "output.model_format", "diffusers" if is_folder else "single_file")
        destination = result.get("output", {}).get("destination")
        if is_folder and destination:
            put(result, "output.destination", destination.removesuffix(".safetensors"))
        return
    put(result, "training.trains", "adapter")
    name, kind = _network_kind(given, network, result, notes)
    rank = number_of(given.pop("network_dim", None))
    alpha = number_of(given.pop("network_alpha", None))
    fields = ADAPTERS[name].settings.model_fields
    if "rank" in fields:
        put(result, "adapter.rank", int(rank or 4))  # sd-scripts' default
        put(result, "adapter.alpha", 1.0 if alpha is None else alpha or float(rank or 4))
    dropout = number_of(pop_first(given, "network_dropout") or network.pop("dropout", None))
    if dropout:
        put(result, "adapter.dropout", dropout)
    if (weights := pop_first(given, "network_weights", "lora_network_weights")) is not None:
        put(result, "adapter.start_from", str(weights))
    if "max_norm" in fields and (norm := number_of(given.get("scale_weight_norms"))) is not None:
        put(result, "adapter.max_norm", norm or None)
        given.pop("scale_weight_norms")
    has_convolutions = _layers(given, network, result, kind)
    adapter_options(given, network, result, notes, name=name, on_resnets=has_convolutions)
    is_of_sd_scripts = "networks.oft" in kind
    _type_settings(given, network, result, name=name, dim=None if is_of_sd_scripts else rank)
    if is_of_sd_scripts:
        message = (
            "OFT of sd-scripts sets the number of blocks of each layer. Here their size is set: it is left at its "
            "default."
        )
        notes.append(Problem("adapter.block_size", message, "warning"))


# kohya's samples, saves and training states.


def sampling_and_saving(given: Args, family: FamilySpec, result: Tree, notes: Notes) -> None:
    """Convert how often samples and files are written, and the sample prompts."""
    put(result, "sampling.every", _period(given, "sample_every_n_epochs", "sample_every_n_steps"))
    put(result, "backup.save_every", _period(given, "save_every_n_epochs", "save_every_n_steps"))
    if flag_of(given.pop("save_state", False)):
        put(result, "backup.every", result["backup"]["save_every"])
    put(result, "backup.at_end", True)
    sampler, prompts = (pop_first(given, name) for name in ("sample_sampler", "sample_prompts"))
    put(result, "sampling.prompts", sample_prompts(prompts, sampler, family, notes))


def _period(given: Args, epochs: str, steps: str) -> dict[str, Any]:
    in_epochs, in_steps = number_of(pop_first(given, epochs)), number_of(pop_first(given, steps))
    if in_epochs and in_epochs > 0:
        return {"n": in_epochs, "unit": "epoch"}
    if in_steps and in_steps > 0:  # sd-scripts counts optimizer updates, as we do
        return {"n": in_steps, "unit": "step"}
    return {"unit": "never"}
