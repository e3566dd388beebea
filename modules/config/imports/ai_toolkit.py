"""The settings of ai-toolkit's configs (`job: extension`) as a tree of ours: the model, the network and the output.

Source for the keys: the README and the example configs of ostris/ai-toolkit (MIT licence) and the defaults of its
`toolkit/config_modules.py`. As with kohya's configs, each key is popped from a copy as it is converted. The keys that
are left and set are kept under `unknown["ai_toolkit"]` and reported; missing keys have ai-toolkit's defaults.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from modules.config.imports.ai_toolkit_data import datasets, samples
from modules.config.imports.ai_toolkit_training import training
from modules.config.imports.kohya_values import (
    Args,
    drop_wrong_numbers,
    flag_of,
    is_set,
    last_part,
    number_of,
    pop_first,
)
from modules.config.migrations.chain import NEWEST_DARKROOM
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.families.registry import FAMILIES, files_of
from modules.families.spec import FamilySpec
from modules.system.problem import Problem, quote

UNKNOWN = "ai_toolkit"
_JOBS = ("extension", "train")
_PROCESSES = ("sd_trainer", "diffusion_trainer", "ui_trainer")
_FILE_OF_ROLE = {"vae": "vae_path", "denoiser": "unet_path"}
_FLAGS = ("is_v2", "is_v3", "is_xl", "is_ssd", "is_vega", "is_flux", "is_lumina2", "is_pixart", "is_pixart_sigma")
_ARCH_OF_FLAG = {"is_v2": "sd2", "is_v3": "sd3", "is_xl": "sdxl"}
# The usual names of models that are not supported here; other models are called by their `arch`.
_LABELS = {
    "sd3": "Stable Diffusion 3",
    "flux": "FLUX.1",
    "chroma": "Chroma",
    "hidream": "HiDream",
    "anima": "Anima",
    "wan21": "Wan 2.1",
    "wan22_14b": "Wan 2.2",
    "ltx2": "LTX-2",
}
_FORMATS = {"qfloat8": "float8", "float8": "float8", "qint8": "int8", "int8": "int8"}
_FOUR_BITS = ("qint4", "uint4", "int4", "nf4")
_NUMBERS = {
    "train": ("steps", "batch_size", "lr", "gradient_accumulation", "gradient_accumulation_steps", "max_grad_norm"),
    "network": ("linear", "linear_alpha", "rank", "alpha", "dropout"),
    "save": ("save_every",),
    "sample": ("sample_every", "width", "height", "seed", "guidance_scale", "sample_steps"),
}
_DTYPES = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16", "fp32": "float32",
           "float32": "float32", "float": "float32"}  # fmt: skip
# Places, logs, uploads and loading: settings that do not change a run here.
_NOT_SETTINGS_NAMES = """
    type device training_folder performance_log_every sqlite_db_path logging meta
    save.push_to_hub save.hf_repo_id save.hf_private save.save_format
    model.dtype model.low_vram model.model_kwargs model.vae_dtype model.te_dtype model.vae_device model.te_device
    model.arch model.split_model_over_gpus model.extras_name_or_path network.transformer_only network.rank
"""
_NOT_SETTINGS = frozenset(_NOT_SETTINGS_NAMES.split())


def is_ai_toolkit(raw: Args) -> bool:
    """Return whether an object is a config of ai-toolkit: a job with a list of processes."""
    config = raw.get("config")
    return "job" in raw and isinstance(config, dict) and isinstance(config.get("process"), list)


def refusal_of(raw: Args, name: str) -> Problem | None:
    """Return the error for the config of a slider, which is trained on prompts alone; None for any other."""
    kinds = [str(p.get("type")) for p in raw["config"]["process"] if isinstance(p, dict)]
    if not kinds or "slider" not in kinds[0].lower():
        return None
    message = f"{name} trains a slider of ai-toolkit ({quote(kinds[0])}), which Darkroom does not train."
    return Problem("", message, advice="Train it in ai-toolkit, or train a LoRA on images here.")


def tree_of_ai_toolkit(raw: Args, notes: Notes) -> Tree:
    """Return our tree for a config. Total: values that do not fit are reported and left out."""
    config = raw["config"]
    first, *others = [p for p in config["process"] if isinstance(p, dict)] or [{}]
    _require_training(raw.get("job"), first, others, notes)
    given = copy.deepcopy(first)
    result = convert(given, str(config.get("name") or "lora"), notes)
    rest = _rest(given)
    if rest:
        result["unknown"] = {UNKNOWN: rest}
        names = ", ".join(sorted(_paths(rest)))
        message = f"These ai-toolkit settings are not supported and are kept in the file: {names}."
        notes.append(Problem("", message, "info"))
    return result


def convert(given: Args, name: str, notes: Notes) -> Tree:
    """Return our tree; every setting of a process that has a counterpart here is popped from `given`."""
    result: Tree = {"darkroom_version": NEWEST_DARKROOM}
    for place, names in _NUMBERS.items():
        drop_wrong_numbers(section(given, place), names, notes)
    model, train = section(given, "model"), section(given, "train")
    family = _model(model, result, notes)
    path = f"{given.get('training_folder') or 'models'}/{last_part(name) or 'last'}"
    _output(section(given, "save"), result, path, train, notes)
    put(result, "training.trains", "adapter" if is_set(given.get("network")) else "full")
    _network(section(given, "network"), family, result, notes)
    _weight_dtypes(model, family, result, notes)
    if (seed := number_of(given.pop("training_seed", None))) is not None:
        put(result, "general.seed", int(seed))
    trigger = str(pop_first(given, "trigger_word") or "")
    put(result, "output.trigger_words", trigger)
    sets = given.get("datasets")
    num_images = datasets(sets if isinstance(sets, list) else [], trigger, train, result, notes)
    samples(section(given, "sample"), trigger, train, result, notes)
    training(train, family, num_images, result, notes)
    return result


def section(given: Args, name: str) -> Args:
    """Return an object of a config, an empty one if it is missing or something else, which is then kept."""
    value = given.get(name)
    return value if isinstance(value, dict) else {}


def _require_training(job: object, process: Args, others: list[Args], notes: Notes) -> None:
    kind = process.get("type")
    if job not in _JOBS or kind not in _PROCESSES:
        message = (
            f"The job {quote(job)} with the process {quote(kind)} is not ai-toolkit's training of a model or a LoRA."
        )
        notes.append(Problem("", message, "warning", "Only the settings of such a training were read."))
    if others:
        message = f"The config has {len(others) + 1} processes; the first one was read."
        notes.append(Problem("", message, "warning", "Import the others from files of their own."))


def _model(model: Args, result: Tree, notes: Notes) -> FamilySpec:
    """Convert the base model and return its family; of an unsupported one, settings of all families are read."""
    flags = [flag for flag in _FLAGS if flag_of(model.pop(flag, False))]
    arch = str(model.get("arch") or "").partition(":")[0]
    arch = arch or next((_ARCH_OF_FLAG.get(flag, flag.removeprefix("is_")) for flag in reversed(flags)), "sd1")
    family = next((spec for spec in FAMILIES.values() if arch in spec.ai_toolkit), None)
    if family is None:  # kept under unknown, where the check before a run finds it and refuses the run
        model["unsupported"] = f"{_LABELS[arch]} ({arch})" if arch in _LABELS else arch
        labels = ", ".join(spec.label for spec in FAMILIES.values())
        message = f"{model['unsupported']} is not supported; only settings shared with other models were read."
        notes.append(Problem("model.family", message, "warning", f"Supported are {labels}."))
        family = next(iter(FAMILIES.values()))
    put(result, "model.family.name", family.name)
    if variant := files_of(family.name).variant_named(arch):
        put(result, "model.variant", variant)
    if (base := pop_first(model, "name_or_path")) is not None:
        put(result, "model.base_model", str(base))
    if flag_of(model.pop("is_v_pred", False)):
        put(result, "model.family.prediction_type", "v_prediction")
    for part in family.parts:
        theirs = _FILE_OF_ROLE.get(part.role, "")
        if theirs and (file := pop_first(model, theirs)) is not None:
            put(result, f"parts.{part.name}.file", str(file))
    if (adapter := pop_first(model, "assistant_lora_path")) is not None:
        put(result, "model.training_adapter", str(adapter))
    if flag_of(model.pop("compile", False)):
        put(result, "model.compile", "on")
    if flag_of(model.get("low_vram")):
        message = "low_vram has no counterpart: parts are on the GPU only while they are needed."
        notes.append(Problem("", message, "info", "Fit to my card chooses settings for a small one."))
    return family


def _weight_dtypes(model: Args, family: FamilySpec, result: Tree, notes: Notes) -> None:
    """Convert the weight dtypes and the offloading of the denoiser and the text encoders."""
    is_quantized = flag_of(model.pop("quantize", False))
    is_text_quantized = flag_of(model.pop("quantize_te", is_quantized))
    is_offloaded = flag_of(model.pop("layer_offloading", False))
    for role, wanted, key, share in (
        ("denoiser", is_quantized, "qtype", "layer_offloading_transformer_percent"),
        ("text_encoder", is_text_quantized, "qtype_te", "layer_offloading_text_encoder_percent"),
    ):
        theirs = str(model.pop(key, None) or "qfloat8")
        fraction = number_of(model.pop(share, 1.0))
        dtype = _format_of(theirs, notes) if wanted else ""
        for part in family.parts:
            if part.role == role and dtype:
                put(result, f"parts.{part.name}.dtype", dtype)
            if part.role == role and is_offloaded and fraction is not None:
                put(result, f"parts.{part.name}.offload_fraction", min(max(fraction, 0.0), 1.0))


def _format_of(theirs: str, notes: Notes) -> str:
    name, _, recovery = theirs.partition("|")
    if recovery:
        message = f"The accuracy recovery adapter {quote(recovery)} is not supported here."
        notes.append(Problem("quantization.layers", message, "warning"))
    if name in _FORMATS:
        return _FORMATS[name]
    if name not in _FOUR_BITS:
        message = f"The weight format {quote(name)} is not supported here; nfloat4 is used instead."
        notes.append(Problem("quantization.layers", message, "warning"))
    return "nfloat4"


def _output(save: Args, result: Tree, path: str, train: Args, notes: Notes) -> None:
    put(result, "output.destination", f"{path}.safetensors")
    if (dtype := _DTYPES.get(str(save.pop("dtype", "float16")))) is not None:
        put(result, "output.dtype", dtype)
    if every := number_of(save.pop("save_every", 1000)):
        put(result, "backup.save_every", {"n": every / _legacy_accumulation(train), "unit": "step"})
    if kept := number_of(save.pop("max_step_saves_to_keep", None)):
        message = f"ai-toolkit keeps the newest {kept:g} saves of a run (max_step_saves_to_keep); here all are kept."
        notes.append(Problem("backup.save_every", message, "info", "Delete those that you do not need."))
    put(result, "backup.at_end", True)


def _legacy_accumulation(train: Args) -> float:
    """Return how many of ai-toolkit's steps are one of ours: `gradient_accumulation_steps` makes each batch a step."""
    return max(1.0, number_of(train.get("gradient_accumulation_steps")) or 1.0)


def _network(network: Args, family: FamilySpec, result: Tree, notes: Notes) -> None:
    if not network:
        return
    kind = str(network.pop("type", None) or "lora").lower()
    name = {"lora": "lora", "locon": "lora", "dora": "lora", "lokr": "lokr", "loha": "loha"}.get(kind)
    if name is None:
        message = f"The network {quote(kind)} is not supported here; a LoRA is trained instead."
        notes.append(Problem("adapter.name", message, "warning"))
    put(result, "adapter.name", name or "lora")
    if kind == "dora":
        put(result, "adapter.decompose", True)
    network.pop("rank" if is_set(network.get("linear")) else "", None)
    rank = number_of(pop_first(network, "rank", "linear")) or 4
    alpha, general = number_of(network.pop("linear_alpha", None)), number_of(network.pop("alpha", 1.0))
    if name == "lokr":
        put(result, "adapter.factor", int(number_of(network.pop("lokr_factor", None)) or -1))
        if flag_of(network.pop("lokr_full_rank", False)):
            put(result, "adapter.full_matrix", True)
            rank, alpha = 16, None
    for key in ("lokr_factor", "lokr_full_rank"):  # the interface of ai-toolkit writes them for every network
        network.pop(key, None)
    put(result, "adapter.rank", int(rank))
    put(result, "adapter.alpha", float(alpha or general or rank))
    if dropout := number_of(network.pop("dropout", None)):
        put(result, "adapter.dropout", dropout)
    conv = number_of(network.pop("conv", None))
    if family.process.flow is not None:  # its interface writes a rank for convolutions, which these models do not have
        conv = None
    conv_alpha = number_of(network.pop("conv_alpha", None))
    if conv:
        put(result, "adapter.conv_rank", int(conv))
        put(result, "adapter.conv_alpha", float(conv_alpha or conv))
    _layers(network, family, bool(conv), result)


def _layers(network: Args, family: FamilySpec, has_convolutions: bool, result: Tree) -> None:
    """Convert the layers: the usual ones of other trainers, unless parts of names are given."""
    arguments = section(network, "network_kwargs")
    only, ignored = (_names(arguments.pop(key, None)) for key in ("only_if_contains", "ignore_if_contains"))
    if only or ignored:
        excluded = f"(?!.*({'|'.join(map(re.escape, ignored))}))" if ignored else ""
        included = f".*({'|'.join(map(re.escape, only))})" if only else ""
        put(result, "adapter.layers", "custom")
        put(result, "adapter.custom_layers", f"^{excluded}{included}".replace(",", r"\x2c"))
        put(result, "adapter.layers_regex", True)
        return
    put(result, "adapter.layers", "all" if has_convolutions else family.denoiser.model.layers_elsewhere)


def _names(value: object) -> list[str]:
    """Return parts of layers' names without the name of the denoiser before them."""
    texts = value if isinstance(value, list) else [value] if is_set(value) else []
    names = (re.sub(r"^(transformer|unet|diffusion_model)\.", "", str(text).strip()) for text in texts)
    return [name for name in names if name]


def _rest(given: Args, above: str = "") -> Args:
    """Return the settings that are left and set, except those that do not change a run."""
    rest: Args = {}
    for key, value in given.items():
        path = f"{above}{key}"
        left = value
        if isinstance(value, dict):
            left = _rest(value, f"{path}.")
        elif isinstance(value, list):
            left = [kept for item in value if (kept := _rest(item) if isinstance(item, dict) else item)]
        if path not in _NOT_SETTINGS and is_set(left) and left not in (False, 0, [], {}):
            rest[key] = left
    return rest


def _paths(rest: Args, above: str = "") -> Iterator[str]:
    for key, value in rest.items():
        path = f"{above}{key}"
        items = [value] if isinstance(value, dict) else value if isinstance(value, list) else []
        objects: list[Any] = [item for item in items if isinstance(item, dict)]
        for item in objects:
            yield from _paths(item, f"{path}.")
        if not objects:
            yield path
