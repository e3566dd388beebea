"""OneTrainer's settings of the model's parts, and their quantization."""

from __future__ import annotations

import re

from modules.config.migrations.onetrainer_11 import tables
from modules.config.migrations.tree_moves import (
    Notes,
    Tree,
    choose,
    move,
    move_or,
    pop_object,
    pop_switch,
    put,
    put_back,
)
from modules.families.registry import FAMILIES
from modules.system.problem import Problem

_TRANSFORMER, _PRIOR, _GUIDE = "transformer", "prior", "unconditional_transformer"
_PARTS = (
    *("unet", _TRANSFORMER, _GUIDE, _PRIOR),
    *("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4", "vae"),
)
# Their files of Stable Diffusion only name these.
_LATER = (_TRANSFORMER, _GUIDE, _PRIOR, "text_encoder_3", "text_encoder_4")
_WUERSTCHEN = "wuerstchen"
_CASCADES = ("stable_cascade", _WUERSTCHEN)
# The published files of their encoders: Stable Cascade's is in the decoder's folder, the other is the default.
_PUBLISHED = re.compile(r"huggingface\.co/(stabilityai/stable-cascade|dome272/wuerstchen)/|^dome272/wuerstchen\b")
_DROPOUTS = {
    "text_encoder": "data.caption_dropout",
    "text_encoder_2": "data.caption_dropout_2",
    "text_encoder_3": "data.caption_dropout_3",
}
_PLAIN = ("train", "learning_rate", "train_embedding", "offload_fraction")
_OPTIONAL = {"sd3": ("text_encoder", "text_encoder_2", "text_encoder_3")}  # with a switch to leave them out (`include`)


def parts_of(rest: Tree, result: Tree, notes: Notes, steps_per_update: int) -> None:
    """Convert the settings of each part, including parts in the file that the family does not have."""
    parts = [part.name for part in FAMILIES[tables.family_of(result)].parts]
    for name in _PARTS:
        if name in parts or (name in rest and name not in _LATER):
            source = "decoder" if name == "vae" and tables.family_of(result) in _CASCADES else name
            given = pop_object(rest, source, notes, f"parts.{name}")
            if name == "vae" and result.get("training", {}).get("trains") == "vae":
                given.pop("train", None)  # FINE_TUNE_VAE ignores it: the VAE has no such switch there
            put(result, f"parts.{name}", _part(name, given, result, notes, steps_per_update))
            put_back(rest, source, given)
    if tables.family_of(result) in _CASCADES:
        _image_encoder(rest, result, notes)
    _further_caption_dropout(result)
    _quantization(rest, result, notes)


def _part(name: str, given: Tree, result: Tree, notes: Notes, steps_per_update: int) -> Tree:
    where = f"parts.{name}"
    part: Tree = {}
    tables.move_all(given, part, {key: key for key in _PLAIN})
    if name in _OPTIONAL.get(tables.family_of(result), ()):
        move(given, part, "include", "include")
    choose(given, part, "weight_dtype", "dtype", tables.WEIGHT_DTYPES, notes, where=f"{where}.dtype")
    is_checkpointed = pop_switch(given, "gradient_checkpointing", notes, f"{where}.checkpointing", default=True)
    part["checkpointing"] = "block" if is_checkpointed else "off"
    move_or(given, part, "activation_offloading", "offload_activations", False)
    default = (30, "EPOCH") if name.startswith("text_encoder") else (0, "NEVER")
    part["stop_after"] = tables.every(
        given, "stop_training_after", steps_per_update, default, notes, f"{where}.stop_after"
    )
    if name in _DROPOUTS:
        move(given, result, "dropout_probability", _DROPOUTS[name])
    elif name == "text_encoder_4":
        _llama(given, part, result)
    elif name == "vae":
        _vae(given, part, result)
    elif name == _GUIDE:  # neither program trains it
        move(given, part, "model_name", "file")
        part = {key: value for key, value in part.items() if key in ("file", "dtype", "offload_fraction")}
    elif name in (_TRANSFORMER, _PRIOR):
        move(given, result, "model_name", "model.denoiser_file")
        if tables.family_of(result) in ("flux", "flux2", tables.VIDEO):
            move(given, result, "guidance_scale", "model.guidance")
        if tables.family_of(result) == "flux2_klein":
            given.pop("guidance_scale", None)  # it has no such input
        if tables.family_of(result) in ("flux", *tables.WITH_T5_LAST, *tables.FLUX2):
            _mask(given, notes)
    return part


def _vae(given: Tree, part: Tree, result: Tree) -> None:
    """Convert the file of the VAE, or the place of the decoder, which neither program trains."""
    if tables.family_of(result) not in _CASCADES:
        move(given, result, "model_name", "model.vae_file")
        return
    for key in ("train", "learning_rate", "stop_after", "train_embedding"):
        part.pop(key, None)
    _place(given, result, "decoder")


def _image_encoder(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the place of the image encoder; its dtype is the decoder's here, as both are one part."""
    given = pop_object(rest, "effnet_encoder", notes, "model.family")
    if _PUBLISHED.search(str(given.get("model_name", ""))):
        del given["model_name"]
    _place(given, result, "effnet_encoder")
    put_back(rest, "effnet_encoder", given)


def _place(given: Tree, result: Tree, name: str) -> None:
    """Move the place of a part that no base model contains to the family's setting with this name, if it is set."""
    if given.get("model_name"):
        move(given, result, "model_name", f"model.{name}")
    given.pop("model_name", None)


def _llama(given: Tree, part: Tree, result: Tree) -> None:
    """Convert the file of the fourth text encoder; its captions are dropped together with the first one's here."""
    move(given, part, "model_name", "file")
    if given.get("dropout_probability", 0.0) == result["data"].get("caption_dropout", 0.0):
        given.pop("dropout_probability", None)


def _mask(given: Tree, notes: Notes) -> None:
    """Report a mask of the padding, which these models attend to."""
    if given.get("attention_mask") is True:
        message = "Masking the padding of prompts (attention_mask) is not supported: the model attends to it."
        notes.append(Problem("model.family", message, "warning"))
    else:
        given.pop("attention_mask", None)


def _further_caption_dropout(result: Tree) -> None:
    """Convert caption dropout: OneTrainer has one for each text encoder, ours is set if it differs from the first."""
    data, has_two = (
        result["data"],
        tables.family_of(result) in {*tables.WITH_TWO_CLIPS, *tables.WITH_T5_LAST, tables.VIDEO},
    )
    first = data.get("caption_dropout", 0.0)
    second = data.setdefault("caption_dropout_2", 0.0 if has_two else first)
    third = data.setdefault("caption_dropout_3", 0.0 if tables.family_of(result) in tables.WITH_T5_LAST else first)
    if second == first or not (has_two or second):
        del data["caption_dropout_2"]
    if third == first:
        del data["caption_dropout_3"]


def _quantization(rest: Tree, result: Tree, notes: Notes) -> None:
    given = pop_object(rest, "quantization", notes, "quantization")
    settings: Tree = {}
    tables.choose_layers(
        given, settings, ("layers", "custom_layers", "layers_regex"), notes, where="quantization.layers"
    )
    svd_dtypes = {**tables.WEIGHT_DTYPES, "NONE": "none"}
    choose(given, settings, "svd_dtype", "svd_dtype", svd_dtypes, notes, where="quantization.svd_dtype")
    move(given, settings, "svd_rank", "svd_rank")
    if given.get("cache_dir") is None:
        given.pop("cache_dir", None)
    move(given, settings, "cache_dir", "cache_dir")
    if settings:
        put(result, "quantization", settings)
    put_back(rest, "quantization", given)
