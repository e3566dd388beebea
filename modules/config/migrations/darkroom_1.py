"""Our version 1 to version 2: settings get the names that are usual in the field.

Only names changed: every value has the same meaning as before. Entries of the load report that point to a renamed
setting get its new path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from modules.config.migrations.tree_moves import Notes, Tree
from modules.system.problem import Problem

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
        result["remembered"] = {path: _remembered(path, variants) for path, variants in remembered.items()}
    notes[:] = [_with_new_path(note) for note in notes]
    return result


def _at(node: Any, steps: list[str], names: Mapping[str, str]) -> Any:
    """Return a node with the keys below a path renamed; anything but objects and lists is left unchanged."""
    if not steps:
        return _renamed(node, names)
    step, *rest = steps
    if step == "*":
        return [_at(item, rest, names) for item in node] if isinstance(node, list) else node
    if isinstance(node, dict) and step in node:
        return {key: _at(value, rest, names) if key == step else value for key, value in node.items()}
    return node


def _renamed(node: object, names: Mapping[str, str]) -> object:
    """Return an object with its keys renamed; a key that already has its new name takes precedence."""
    if not isinstance(node, dict):
        return node
    return {
        names.get(key, key): value
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


def _remembered(path: str, variants: object) -> object:
    """Return the remembered settings of the variants at a path, renamed like those of the selected one."""
    names = _RENAMED.get(path)
    if names is None or not isinstance(variants, dict):
        return variants
    return {variant: _renamed(fields, names) for variant, fields in variants.items()}


def _with_new_path(note: Problem) -> Problem:
    """Return a note with its path in version 2."""
    steps = note.path.split(".")
    for section, names in _RENAMED.items():
        depth = len(section.split("."))
        is_there = all(own in ("*", step) for own, step in zip(section.split("."), steps, strict=False))
        if len(steps) > depth and is_there and steps[depth] in names:
            steps[depth] = names[steps[depth]]
    return replace(note, path=".".join(steps))
