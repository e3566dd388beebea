"""The settings of kohya's scripts for flow models: sd-scripts' `flux_train_network`, `flux_train`, and musubi-tuner's.

Source for the keys: the documentation of sd-scripts (docs/flux_train_network.md, Apache-2.0) and of musubi-tuner. Which
model a file is for is in `model_type`, in the name of the network's module, in a checkbox of kohya_ss, or in the
metadata of a LoRA; the families declare their names (`FamilySpec.kohya`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from modules.config.imports.kohya_values import Args, flag_of, is_set, number_of, pop_first
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.families.registry import FAMILIES, files_of, published_models
from modules.families.spec import FamilySpec
from modules.system.problem import Problem, quote

_MODULE = re.compile(r"networks\.[a-z]+_([a-z0-9][\w.-]*)")  # networks.lora_flux
_NO_MODEL = ("fa", "diffusers")  # networks.lora_fa
_BOXES = {"flux1_checkbox": "flux", "sd3_checkbox": "sd3", "lumina_checkbox": "lumina"}
# Keys of weights that are not named as ComfyUI names text encoders, with the classes that read them.
_FILES = {"clip_l": (":CLIPTextModel",), "t5xxl": (":T5EncoderModel",), "ae": (":AutoencoderKL",),
          "text_encoder": (":Qwen3Model", ":Qwen3VLTextModel", ":Qwen2_5_VLTextModel"),
          "byt5": (":T5EncoderModel",), "qwen3": (":Qwen3Model",), "gemma2": (":Gemma2Model",)}  # fmt: skip
_NEXT_DIT_SHIFT = 3.1582  # e to the power of 1.15: the shift of `nextdit_shift` at 1024 px
# The values of keys that a config lacks: musubi-tuner's, sd-scripts' for FLUX, and what its other models have instead.
# `weighs`: the loss is weighted by `weighting_scheme` whatever `model_prediction_type` is.
_MUSUBI = {"timestep_sampling": "sigma", "discrete_flow_shift": 1.0, "guidance_scale": 1.0,
           "model_prediction_type": "raw", "weighs": True}  # fmt: skip
_SD_SCRIPTS = {"timestep_sampling": "sigma", "discrete_flow_shift": 3.0, "guidance_scale": 3.5,
               "model_prediction_type": "sigma_scaled", "weighs": False}  # fmt: skip
_OF_SD_SCRIPTS: dict[str, Args] = {
    "flux": {},
    "chroma": {},
    "lumina2": {},
    "sd3": {"training_shift": 1.0},
    "hunyuan_image": {"discrete_flow_shift": 5.0, "model_prediction_type": "raw"},
    "anima": {
        "timestep_sampling": "sigmoid",
        "discrete_flow_shift": 1.0,
        "model_prediction_type": "raw",
        "weighs": True,
    },
}
_DROPOUTS = ("clip_l_dropout_rate", "clip_g_dropout_rate", "t5_dropout_rate")
_SCHEMES = {"logit_normal": "logit_normal", "mode": "heavy_tail"}  # with the others all rows are equally likely
_WEIGHTS = ("sigma_sqrt", "cosmap")  # schemes that weigh the loss; they have the same names here
_BLOCKS = {
    "train_double_block_indices": "transformer_blocks",
    "train_single_block_indices": "single_transformer_blocks",
}
_DOUBLE, _SINGLE = r"^transformer_blocks\.\d+\.", r"^single_transformer_blocks\.\d+\."
# sd-scripts' ranks of groups of layers, and the layers in diffusers' names.
_RANKS = {
    "img_attn_dim": rf"{_DOUBLE}attn\.to_(q|k|v|out)",
    "txt_attn_dim": rf"{_DOUBLE}attn\.(add_[qkv]_proj|to_add_out)",
    "img_mlp_dim": rf"{_DOUBLE}ff\.",
    "txt_mlp_dim": rf"{_DOUBLE}ff_context\.",
    "img_mod_dim": rf"{_DOUBLE}norm1\.",
    "txt_mod_dim": rf"{_DOUBLE}norm1_context\.",
    "single_dim": rf"{_SINGLE}(attn|proj_mlp|proj_out)",
    "single_mod_dim": rf"{_SINGLE}norm\.",
}
_MAX_BLOCKS = 1000


def model_type_of(given: Args) -> str:
    """Return the name of a model that is neither SD nor SDXL, which is popped; empty for those two."""
    boxes = [name for box, name in _BOXES.items() if flag_of(given.pop(box, False))]
    named = str(pop_first(given, "model_type") or "").lower()
    size = str(given.get("model_version") or "").lower().replace("-", "_")
    if family_of_type(size) is not None:  # musubi-tuner's, of FLUX.2 klein, whose module is dev's, too
        given.pop("model_version")
        named = named or size
    module = _MODULE.search(str(given.get("network_module", "")))
    if module and module[1] not in _NO_MODEL:
        named = named or module[1]
    version = str(given.get("base_model_version", ""))
    is_other = version and not version.startswith(("sd_", "sdxl"))
    return named or (boxes[0] if boxes else "") or (version if is_other else "")


def family_of_type(model_type: str) -> FamilySpec | None:
    """Return the family that has one of kohya's names; None for another."""
    return next((spec for spec in FAMILIES.values() if model_type in spec.kohya), None)


def report_unsupported(model_type: str, given: Args, notes: Notes) -> None:
    """Report a model of an unsupported family, and keep its name, so that the check before a run refuses it."""
    given["model_type"] = model_type
    labels = ", ".join(spec.label for spec in FAMILIES.values())
    message = f"{model_type} is not supported; only settings shared with Stable Diffusion were read."
    notes.append(Problem("model.family", message, "warning", f"Supported are {labels}."))


def flow(given: Args, network: Args, family: FamilySpec, result: Tree, notes: Notes) -> None:
    """Convert the settings that only flow models have. The training of the parts must be converted already."""
    # `dit` is musubi-tuner's key of the denoiser.
    is_of_musubi = is_set(given.get("dit")) or family.name not in _OF_SD_SCRIPTS
    usual = _MUSUBI if is_of_musubi else _SD_SCRIPTS | _OF_SD_SCRIPTS[family.name]
    _files(given, family, result)
    _variant(given, family, result)
    _noise_levels(given, usual, family, result, notes)
    _inputs(given, usual, family, result, notes)
    _conditioner(given, network, family, result)
    _memory(given, family, result)
    if result["training"]["trains"] == "adapter":
        _layers(network, family, result, notes)


def _part_of(family: FamilySpec, classes: tuple[str, ...]) -> str:
    return next((part.name for part in family.parts if part.model_class.endswith(classes)), "")


def _inner_part(family: FamilySpec) -> str:
    """Return the text encoder of a family that reads the states of another one, sd-scripts' `llm_adapter`, if any."""
    return next((part.name for part in family.parts if part.reads), "")


def _encoder_names(family: FamilySpec) -> dict[str, str]:
    """Return the text encoders of a family by ComfyUI's names of them: clip_l, clip_g, t5xxl."""
    models = [model for model in published_models() if model.family == family.name]
    return {name: part for model in models for part, name in model.comfy_encoders.items()}


def _files(given: Args, family: FamilySpec, result: Tree) -> None:
    if (file := pop_first(given, "dit")) is not None:
        put(result, "model.base_model", str(file))
    if (part := _inner_part(family)) and is_set(given.get("llm_adapter_path")):
        put(result, f"parts.{part}.file", str(given.pop("llm_adapter_path")))
    encoders = _encoder_names(family)
    for key in dict.fromkeys((*encoders, *_FILES)):
        part = encoders.get(key) or _part_of(family, _FILES.get(key, ("?",)))
        if part and is_set(given.get(key)):
            put(result, f"parts.{part}.file", str(given.pop(key)))
    if is_set(given.get("turbo_dit")):
        put(result, "sampling.model", str(given.pop("turbo_dit")))


def _variant(given: Args, family: FamilySpec, result: Tree) -> None:
    """Convert musubi-tuner's `model_version`, such as edit-2509, or the flags of its older versions."""
    flags = [flag for flag in ("edit_plus", "edit") if flag_of(given.get(flag))]
    named = str(given.get("model_version") or next(iter(flags), ""))
    if named and (variant := files_of(family.name).variant_named(f"{family.label}-{named}")):
        put(result, "model.variant", variant)
        for key in ("model_version", *flags):
            given.pop(key, None)


def _noise_levels(given: Args, usual: Args, family: FamilySpec, result: Tree, notes: Notes) -> None:
    """Convert how noise levels are drawn: with the density of `weighting_scheme`, or of a method with its own.

    The method "sigma" draws a row of the scheduler's table, which is shifted, too, and starts with pure noise: a larger
    `logit_mean` is less noise. The script of Stable Diffusion 3 draws the noise level itself: there it is more.
    """
    method = str(pop_first(given, "timestep_sampling") or usual["timestep_sampling"])
    scheme = str(pop_first(given, "weighting_scheme") or "none")
    shift, scale = _number(given, usual, "discrete_flow_shift"), number_of(given.pop("sigmoid_scale", None))
    training_shift = number_of(given.pop("training_shift", None))
    mean = number_of(given.pop("logit_mean", None)) or 0.0
    spread, mode = (number_of(given.pop(key, None)) for key in ("logit_std", "mode_scale"))
    path = "training.noise.distribution"
    grows = {"flux_shift", *(f"{name}_shift" for name in family.kohya)}  # with the size of the image
    if method in ("sigmoid", "shift") or method in grows:
        put(result, path, "logit_normal")
        put(result, "training.noise.noising_weight", (1.0 if scale is None else scale) - 1.0)
        if method == "shift":
            put(result, "training.noise.shift", shift)
        elif method in grows:
            put(result, "training.noise.dynamic_shift", True)
    elif method == "nextdit_shift":
        put(result, path, "uniform")
        put(result, "training.noise.shift", _NEXT_DIT_SHIFT)
        put(result, "training.noise.dynamic_shift", True)
    elif method in ("sigma", "uniform"):
        ours = _SCHEMES.get(scheme, "uniform") if method == "sigma" else "uniform"
        put(result, path, ours)
        if method == "sigma":
            put(result, "training.noise.shift", number_of(usual.get("training_shift", shift)))
        if ours == "logit_normal":
            put(result, "training.noise.noising_weight", (1.0 if spread is None else spread) - 1.0)
            put(result, "training.noise.noising_bias", mean if "training_shift" in usual else 0.0 - mean)
        elif ours == "heavy_tail":
            put(result, "training.noise.noising_weight", 1.29 if mode is None else mode)  # sd-scripts' default
    else:
        message = f"timestep_sampling {quote(method)} is not supported here; uniform noise levels are used instead."
        notes.append(Problem(path, message, "warning"))
        put(result, path, "uniform")
    if training_shift is not None:
        put(result, "training.noise.shift", training_shift)
    _loss_weights(scheme, given, usual, result)


def _loss_weights(scheme: str, given: Args, usual: Args, result: Tree) -> None:
    """Convert a `weighting_scheme` that weighs the loss.

    sd-scripts' "sigma_scaled" multiplies the loss of the velocity by sigma², which is the inverse of "sigma_sqrt".
    """
    is_scaled = (given.get("model_prediction_type") or usual["model_prediction_type"]) == "sigma_scaled"
    if scheme in _WEIGHTS and (usual["weighs"] or (is_scaled and scheme != "sigma_sqrt")):
        put(result, "training.loss.weighting", scheme)


def _number(given: Args, usual: Args, key: str) -> float | None:
    """Return the number of a key, which is popped, or the script's own without it."""
    value = number_of(given.pop(key, None))
    return number_of(usual[key]) if value is None else value


def _inputs(given: Args, usual: Args, family: FamilySpec, result: Tree, notes: Notes) -> None:
    """Convert the settings of the model's further inputs, and of its output."""
    fields = family.settings.model_fields
    guidance = _number(given, usual, "guidance_scale")
    if "guidance" in fields:
        put(result, "model.family.guidance", guidance)
    tokens = number_of(given.pop("t5xxl_max_token_length", None))
    if tokens and "text_tokens" in fields:
        put(result, "model.family.text_tokens", int(tokens))
    if "text_tokens" not in fields:  # the family masks padding by itself
        given.pop("apply_t5_attn_mask", None)
    _dropouts(given, family, result)
    prediction = str(pop_first(given, "model_prediction_type") or usual["model_prediction_type"])
    if prediction != "raw":
        message = f"model_prediction_type {prediction} is not supported here: the velocity is trained as it is (raw)."
        notes.append(Problem("training.loss.weighting", message, "warning"))


def _dropouts(given: Args, family: FamilySpec, result: Tree) -> None:
    """Convert the caption dropout of each text encoder, for models with three."""
    rates = [number_of(given.pop(key, None)) or 0.0 for key in _DROPOUTS]
    if any(rates) and len(family.names_of("text_encoder")) == len(rates):
        for path, rate in zip(("caption_dropout", "caption_dropout_2", "caption_dropout_3"), rates, strict=True):
            put(result, f"data.{path}", min(max(rate, 0.0), 1.0))


def _conditioner(given: Args, network: Args, family: FamilySpec, result: Tree) -> None:
    """Convert whether the part that reads the states of a text encoder is trained, and its learning rate.

    A LoRA has it only if its arguments enable it; a fine-tune has it unless its rate is 0.
    """
    if not (part := _inner_part(family)):
        return
    rate = number_of(given.pop("llm_adapter_lr", None))
    rate = rate if (adapter_rate := number_of(network.pop("llm_adapter_lr", None))) is None else adapter_rate
    is_named = flag_of(network.pop("train_llm_adapter", False))
    trains = (is_named if result["training"]["trains"] == "adapter" else rate is not None) and rate != 0
    if trains:
        put(result, "model.family.train_conditioner", True)
        put(result, f"parts.{part}.train", True)
        if rate:
            put(result, f"parts.{part}.learning_rate", rate)
    given.pop("t5_tokenizer_path", None)  # the base model has its tokenizers


def _memory(given: Args, family: FamilySpec, result: Tree) -> None:
    """Convert float8 weights, swapped blocks and offloaded checkpoints."""
    denoiser, encoders = family.denoiser.name, family.names_of("text_encoder")
    is_all, is_scaled = flag_of(given.pop("fp8_base", False)), flag_of(given.pop("fp8_scaled", False))
    if is_all or is_scaled or flag_of(given.pop("fp8_base_unet", False)):
        put(result, f"parts.{denoiser}.dtype", "float8")
    is_text = any([flag_of(given.pop(key, False)) for key in ("fp8_t5", "fp8_llm", "fp8_vl", "fp8_text_encoder")])
    for encoder in encoders if is_all or is_text else ():
        if not result.get("parts", {}).get(encoder, {}).get("train", False):
            put(result, f"parts.{encoder}.dtype", "float8")
    if flag_of(given.pop("cpu_offload_checkpointing", False)):
        put(result, f"parts.{denoiser}.offload_activations", True)
    blocks, total = number_of(given.pop("blocks_to_swap", None)), _num_blocks(family)
    if blocks and total:
        put(result, f"parts.{denoiser}.offload_fraction", round(min(1.0, blocks / total), 2))
    for key in ("split_attn", "split_mode", "flash_attn", "sage_attn"):
        given.pop(key, None)


def _num_blocks(family: FamilySpec) -> float:
    """Return the number of blocks as sd-scripts swaps them: two single-stream blocks count as one."""
    for model in published_models():
        config = model.shipped_configs().get(family.denoiser.name, {}) if model.family == family.name else {}
        if config:
            whole = sum(int(config.get(key) or 0) for key in ("num_layers", "n_layers"))
            return whole + int(config.get("num_single_layers") or 0) / 2
    return 0.0


def _layers(network: Args, family: FamilySpec, result: Tree, notes: Notes) -> None:
    """Convert which blocks have an adapter, and the ranks of groups of layers."""
    network.pop("split_qkv", None)  # they always are
    put(result, "adapter.layers", family.denoiser.model.layers_elsewhere)
    given = {key: str(network.pop(key)) for key in _BLOCKS if network.get(key) is not None}  # "none" is a value
    if given and (lines := list(_chosen_blocks(given))):
        put(result, "adapter.layers", "custom")
        put(result, "adapter.custom_layers", ",".join(lines))
        put(result, "adapter.layers_regex", True)
    elif given:
        message = "The file trains none of the blocks; all of them are trained."
        notes.append(Problem("adapter.layers", message, "warning"))
    ranks = {key: number_of(network.pop(key)) for key in _RANKS if is_set(network.get(key))}
    if ranks:
        lines = [f"re:{_RANKS[key]} = {int(rank)}" for key, rank in ranks.items() if rank is not None]
        put(result, "adapter.layer_ranks", "\n".join(lines))


def _chosen_blocks(given: Mapping[str, str]) -> Iterator[str]:
    """Yield an expression for each kind of block: all of it, or those with the given numbers."""
    for key, name in _BLOCKS.items():
        text = given.get(key, "all").strip().lower()
        if text == "all":
            yield rf"^{name}\."
        elif numbers := sorted(_numbers(text)):
            yield rf"^{name}\.({'|'.join(map(str, numbers))})\."


def _numbers(text: str) -> set[int]:
    """Return the numbers in a list of numbers and ranges: 0,1,4-5."""
    numbers: set[int] = set()
    for match in re.finditer(r"(\d{1,4})(?:\s*-\s*(\d{1,4}))?", text):
        first = int(match[1])
        numbers |= set(range(first, min(int(match[2] or first), _MAX_BLOCKS) + 1))
    return numbers
