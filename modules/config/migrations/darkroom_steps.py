"""The steps of our own versions, and the settings that were removed without a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from modules.config.migrations.onetrainer_optimizers import drop_removed
from modules.config.migrations.tree_moves import Notes, Tree, rename_key, with_defaults
from modules.optim.registry import OPTIMIZERS
from modules.system.problem import Problem

# Our version 1 to version 2: settings get the names that are usual in the field.
#
# Only names changed: every value has the same meaning as before. Entries of the load report that point to a renamed
# setting get its new path.


# By section; a star stands for each entry of a list.
_RENAMED: Mapping[str, Mapping[str, str]] = {
    "model": {"prediction": "prediction_type"},
    "data": {"aspect_buckets": "aspect_ratio_bucketing", "max_aspect": "max_aspect_ratio"},
    "concepts.*.text": {
        "keep_tags": "keep_tags_count",
        "drop_tags": "tag_dropout",
        "drop_mode": "tag_dropout_mode",
        "drop_probability": "tag_dropout_probability",
        "change_capitals": "randomize_capitalization",
        "capital_modes": "capitalization_modes",
        "capital_probability": "capitalization_probability",
        "lower_case": "lowercase_first",
    },
    "training": {
        "trained_layers": "layer_filter",
        "trained_layer_names": "layer_filter_names",
        "trained_layers_regex": "layer_filter_regex",
        "clip_norm": "clip_grad_norm",
        "max_skipped_steps": "max_consecutive_skipped_steps",
        "fallback_precision": "fallback_train_dtype",
        "small_weights": "low_precision_updates",
    },
    "training.noise": {"distribution_weight": "noising_weight", "distribution_bias": "noising_bias"},
    "training.method": {
        "truncate": "gradient_truncation",
        "last_steps": "backprop_steps",
        "last_steps_min": "backprop_steps_min",
        "target": "target_reward",
        "hold_out": "held_out_reward",
    },
    "reward": {
        "scorers": "models",
        "num_pictures": "num_images",
        "stop_after_worse": "early_stopping_patience",
    },
    "validation": {"stop_after_worse": "early_stopping_patience"},
    "sampling": {"without_average_too": "also_without_ema"},
}
_DROP_MODES: Mapping[object, str] = {"all": "full", "each": "random", "later_rather": "random_weighted"}


def to_darkroom_2(tree: Tree, notes: Notes) -> Tree:
    """Return a tree of our version 1 with the names of version 2; paths in `notes` are renamed in place."""
    result = dict(tree)
    for section, names in _RENAMED.items():
        result = _at(result, section.split("."), names)
    result = _drop_modes(result)
    remembered = result.get("remembered")
    if isinstance(remembered, dict):
        result["remembered"] = {path: _rename_remembered(path, variants) for path, variants in remembered.items()}
    notes[:] = [_with_new_path(note) for note in notes]
    return result


def _at(node: Any, steps: list[str], names: Mapping[str, str]) -> Any:
    """Return a node with the keys below a path renamed; anything but objects and lists is left unchanged."""
    if not steps:
        return _rename_keys(node, names)
    step, *rest = steps
    if step == "*":
        return [_at(item, rest, names) for item in node] if isinstance(node, list) else node
    if isinstance(node, dict) and step in node:
        return {key: _at(value, rest, names) if key == step else value for key, value in node.items()}
    return node


def _rename_keys(node: object, names: Mapping[str, str]) -> object:
    """Return an object with its keys renamed; a key that already has its new name takes precedence."""
    if not isinstance(node, dict):
        return node
    return {
        rename_key(key, names[key]) if key in names else key: value
        for key, value in node.items()
        if names.get(key, key) == key or names[key] not in node
    }


def _drop_modes(tree: Tree) -> Tree:
    """Return the tree with the tag dropout modes of its concepts renamed."""

    def mode_of(concept: object) -> object:
        text = concept.get("text") if isinstance(concept, dict) else None
        if not isinstance(concept, dict) or not isinstance(text, dict):
            return concept
        mode = text.get("tag_dropout_mode")
        known = isinstance(mode, str) and mode in _DROP_MODES
        return {**concept, "text": {**text, "tag_dropout_mode": _DROP_MODES[mode]}} if known else concept

    concepts = tree.get("concepts")
    return {**tree, "concepts": [mode_of(c) for c in concepts]} if isinstance(concepts, list) else tree


def _rename_remembered(path: str, variants: object) -> object:
    """Return the remembered settings of the variants at a path, renamed like the selected one's."""
    names = _RENAMED.get(path)
    if names is None or not isinstance(variants, dict):
        return variants
    return {variant: _rename_keys(fields, names) for variant, fields in variants.items()}


def _with_new_path(note: Problem) -> Problem:
    """Return a note with its path in version 2."""
    steps = note.path.split(".")
    for section, names in _RENAMED.items():
        depth = len(section.split("."))
        is_there = all(name in ("*", step) for name, step in zip(section.split("."), steps, strict=False))
        if len(steps) > depth and is_there and steps[depth] in names:
            steps[depth] = names[steps[depth]]
    return replace(note, path=".".join(steps))


# Our version 2 to version 3: DoRA is on the input axis unless a file states otherwise.
#
# Until version 2 a file without the axis meant the output axis, which ComfyUI, Forge and A1111 compute otherwise than
# the paper. Such a file keeps what it meant.


_DECOMPOSE, _AXIS = "decompose", "decompose_output_axis"


def to_darkroom_3(tree: Tree, notes: Notes) -> Tree:
    """Return a tree of our version 2 with the axis of DoRA stated wherever DoRA is on."""
    result = dict(tree)
    if "adapter" in result:
        result["adapter"] = _with_axis(result["adapter"])
    remembered = result.get("remembered")
    if isinstance(remembered, dict) and isinstance(variants := remembered.get("adapter"), dict):
        result["remembered"] = {
            **remembered,
            "adapter": {name: _with_axis(variant) for name, variant in variants.items()},
        }
    return result


def _with_axis(adapter: object) -> object:
    is_on = isinstance(adapter, dict) and adapter.get(_DECOMPOSE) not in (None, False)
    return with_defaults(adapter, {_AXIS: True}) if isinstance(adapter, dict) and is_on else adapter


# Our version 3 to version 4: the settings that only some families have move to the family.
#
# `model.family` was a name, with the settings of all families next to it. Only places changed, and the name of the
# UNet's file: every value has the same meaning as before. Entries of the load report get the new paths.


_FAMILY = "model.family"
_OF_ONETRAINER = ("guidance", "text_tokens", "decoder", "effnet_encoder")  # no family of ours had them before version 4
_OF_FAMILY = ("prediction_type", "zero_terminal_snr", "clip_skip", "prompt_weighting", *_OF_ONETRAINER)
_SECOND = "clip_skip_2"  # only these families have it; the second one in OneTrainer's files only
_WITH_SECOND = ("sdxl", "sd3")
_PATHS_IN_FAMILY = {
    **{f"model.{name}": f"{_FAMILY}.{name}" for name in (*_OF_FAMILY, _SECOND)},
    "model.unet_file": "model.denoiser_file",
}


def to_darkroom_4(tree: Tree, notes: Notes) -> Tree:
    """Return a tree of our version 3 with each family's settings in the family; paths in `notes` are renamed in place.

    A second clip skip of another family is remembered for SDXL. A key that has its new place takes precedence.
    """
    notes[:] = [replace(note, path=_PATHS_IN_FAMILY.get(note.path, note.path)) for note in notes]
    model = tree.get("model")
    if not isinstance(model, dict):
        return tree
    model = dict(model)
    if "unet_file" in model:
        model = {"denoiser_file": model.pop("unet_file"), **model}
    moved = {key: value for key, value in model.items() if key in _OF_FAMILY}
    second = {key: value for key, value in model.items() if key == _SECOND}
    model = {key: value for key, value in model.items() if key not in (*_OF_FAMILY, _SECOND)}
    family = model.get("family", {"name": "sd"})
    has_second = (family.get("name") if isinstance(family, dict) else family) in _WITH_SECOND
    if has_second:
        moved |= second
    if moved or "family" in model:
        model["family"] = _with_settings(family, moved)
    result = {**tree, "model": model}
    return result if has_second or not second else _remembered_for_sdxl(result, second)


def _with_settings(family: object, moved: Tree) -> object:
    """Return the family as an object with the moved settings; anything but a name or an object is left as it is."""
    if isinstance(family, str):
        return {"name": family, **moved}
    return {**moved, **family} if isinstance(family, dict) else family


def _remembered_for_sdxl(tree: Tree, second: Tree) -> Tree:
    remembered: Any = tree.get("remembered", {})
    families: Any = remembered.get(_FAMILY, {}) if isinstance(remembered, dict) else None
    if not isinstance(families, dict) or second[_SECOND] is None:
        return tree
    of_sdxl: Any = families.get("sdxl", {})
    kept = {**second, **of_sdxl} if isinstance(of_sdxl, dict) else second
    return {**tree, "remembered": {**remembered, _FAMILY: {**families, "sdxl": kept}}}


# Our version 4 to version 5: the losses that are mixed are entries of `training.loss.mix`, each with its own settings.
#
# They were fields next to each other, with one delta, schedule and form for both Huber losses. Every value has the same
# meaning as before. Entries of the load report get the new paths.


_LOSSES = ("mse", "mae", "log_cosh", "huber", "smooth_l1")
_WITH_DELTA = ("huber", "smooth_l1")
_OF_DELTA = {"huber_delta": "delta", "huber_schedule": "schedule", "huber_form": "form"}
_SECTION = "training.loss"
_PATHS_IN_MIX = {
    **{f"{_SECTION}.{name}_strength": f"{_SECTION}.mix.{name}.strength" for name in _LOSSES},
    **{f"{_SECTION}.{old}": f"{_SECTION}.mix.huber.{new}" for old, new in _OF_DELTA.items()},
}


def to_darkroom_5(tree: Tree, notes: Notes) -> Tree:
    """Return a tree of our version 4 with the losses in the mix; paths in `notes` are renamed in place.

    Delta, its schedule and its form go to the Huber losses that have a strength, or to huber's if neither has one. A
    key that has its new place takes precedence.
    """
    notes[:] = [_with_place_in_mix(note) for note in notes]
    training = tree.get("training")
    loss = training.get("loss") if isinstance(training, dict) else None
    if not isinstance(training, dict) or not isinstance(loss, dict):
        return tree
    loss = dict(loss)
    mix = loss.get("mix", {})
    if not isinstance(mix, dict):
        return tree
    of_delta = {new: loss.pop(old) for old, new in _OF_DELTA.items() if old in loss}
    strengths = {name: loss.pop(f"{name}_strength") for name in _LOSSES if f"{name}_strength" in loss}
    added = {name: {"strength": strength} for name, strength in strengths.items()}
    if of_delta:
        for name in [name for name in _WITH_DELTA if strengths.get(name)] or ["huber"]:
            added[name] = {**added.get(name, {}), **of_delta}
    if added:
        loss["mix"] = _add_missing(added, mix)
    return {**tree, "training": {**training, "loss": loss}}


def _add_missing(added: Tree, entries: Tree) -> Tree:
    """Return entries with missing ones, and their missing keys, added; an entry that is not an object is unchanged."""
    result = with_defaults(entries, added)
    for name, entry in entries.items():
        if isinstance(entry, dict):
            result[name] = with_defaults(entry, added.get(name, {}))
    return result


def _with_place_in_mix(note: Problem) -> Problem:
    return replace(note, path=_PATHS_IN_MIX.get(note.path, note.path))


# Our version 5 to version 6: the file of a part is a setting of the part, so that every part can have one.
#
# Until then the settings of the model had the files of the denoiser and the VAE. Entries of the load report get the new
# paths.


# By family; all other families have a transformer.
_DENOISERS = {"sd": "unet", "sdxl": "unet", "stable_cascade": "prior", "wuerstchen": "prior"}
_TRANSFORMER = "transformer"


def to_darkroom_6(tree: Tree, notes: Notes) -> Tree:
    """Return a tree of our version 5 with the files of parts in the parts; paths in `notes` are renamed in place.

    A file that the part has in its new place takes precedence.
    """
    model = tree.get("model")
    if not isinstance(model, dict):
        return tree
    family = model.get("family", "sd")
    name = family.get("name", "sd") if isinstance(family, dict) else family
    places = {"vae_file": "vae", "denoiser_file": _DENOISERS.get(name, _TRANSFORMER) if isinstance(name, str) else ""}
    paths = {f"model.{old}": f"parts.{part}.file" for old, part in places.items()}
    notes[:] = [replace(note, path=paths.get(note.path, note.path)) for note in notes]
    moved: Tree = {
        places[key]: {rename_key(key, "file"): file}
        for key, file in model.items()
        if key in places and file not in (None, "")
    }
    parts = tree.get("parts", {})
    result = {**tree, "model": {key: value for key, value in model.items() if key not in places}}
    if moved and isinstance(parts, dict):
        result["parts"] = _add_missing(moved, parts)
    return result


# Our version 6 to version 7: large text encoders are not trained, and adapters of some families have ComfyUI's or
# diffusers' names, unless a file states otherwise.
#
# Until then every part was trained, and all adapters had kohya's names. A file keeps its meaning: the old default is
# written where it has no value. Families whose large encoders cannot be trained are not affected. OneTrainer's files,
# also those of families that are newer than version 6, come through here, too, with the same defaults.


_KOHYAS_NAMES = frozenset({"sd", "sdxl", "sd3", "flux", "flux2", "flux2_klein", "chroma"})  # they still have them
_LARGE = {"flux": "text_encoder_2", "chroma": "text_encoder", "sd3": "text_encoder_3", "pixart": "text_encoder"}


def to_darkroom_7(tree: Tree, notes: Notes) -> Tree:
    """Return a tree of our version 6 that states the version's defaults which now depend on the family."""
    model = tree.get("model")
    family = model.get("family") if isinstance(model, dict) else None
    name = family.get("name") if isinstance(family, dict) else family
    if not isinstance(name, str):
        return tree
    if name not in _KOHYAS_NAMES:
        tree = _fill_section(tree, "output", {"format": "kohya"})
    return _fill_section(tree, "parts", {_LARGE[name]: {"train": True}}) if name in _LARGE else tree


def _fill_section(tree: Tree, section: str, values: Tree) -> Tree:
    """Return a tree with values added to a section that lacks them, unless the section is not an object."""
    present = tree.get(section, {})
    return {**tree, section: _add_missing(values, present)} if isinstance(present, dict) else tree


# Settings of our earlier files that no longer exist are dropped, with a note if they were set; switches that have
# become choices keep their value. This happens without a new version of the files.


_DUMP_NOTE = (
    "Debug dump does not exist here. To see what the trainer reads of the images, use the preview of a concept or "
    "python -m trainer preview; for a bug report, Debug bundle in the Window menu or python -m trainer bundle."
)


def without_removed(tree: Tree, notes: Notes) -> Tree:
    """Return one of our trees without the settings that no longer exist."""
    tree = without_debug_dump(tree, notes)
    with_choices(tree)
    training = tree.get("training")
    optimizer = training.get("optimizer") if isinstance(training, dict) else None
    if isinstance(optimizer, dict) and isinstance(name := optimizer.get("name"), str) and name in OPTIMIZERS:
        drop_removed(optimizer, name, notes)
    remembered = tree.get("remembered")
    others = remembered.get("training.optimizer") if isinstance(remembered, dict) else None
    for other, settings in others.items() if isinstance(others, dict) else ():
        if other in OPTIMIZERS and isinstance(settings, dict):
            drop_removed(settings, other, [])
    return tree


def without_debug_dump(tree: Tree, notes: Notes) -> Tree:
    """Return one of our trees without the settings of OneTrainer's debug dump."""
    general = tree.get("general")
    if isinstance(general, dict):
        general.pop("debug_dir", None)
        if general.pop("debug_dump", False) is True:
            notes.append(Problem("general", _DUMP_NOTE, "info"))
    return tree


def with_choices(tree: Tree) -> Tree:
    """Replace the switches that have become choices in one of our trees, in place, and return it."""
    _switch_to_choice(tree, "model", "channels_last")
    _switch_to_choice(tree, "model", "compile")
    return tree


def _switch_to_choice(tree: Tree, section: str, key: str) -> None:
    """Replace true and false by "on" and "off", in place."""
    settings = tree.get(section)
    if isinstance(settings, dict) and isinstance(value := settings.get(key), bool):
        settings[key] = "on" if value else "off"
