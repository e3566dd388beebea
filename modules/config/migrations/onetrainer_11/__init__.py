"""OneTrainer's config version 11 to our version 1: one file for each topic.

Every key is popped from a copy of the file as it is converted; keys that are left are kept under
`unknown["onetrainer"]` and reported. Missing keys have OneTrainer's defaults, not ours, since that is what the file
meant. Settings that exist here but are not supported yet are refused before a run, so there is no note about them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from modules.config.migrations.onetrainer_11.lists import concepts_of, samples_of
from modules.config.migrations.onetrainer_11.model import adapter_of, model_of, parts_of
from modules.config.migrations.onetrainer_11.other_topics import data_of, devices_of, embeddings_of, evaluation_of
from modules.config.migrations.onetrainer_11.training import training_of
from modules.config.migrations.tree_moves import Notes, Tree, number
from modules.system.problem import Problem, cut

__all__ = ["to_darkroom_1"]

# OneTrainer's defaults (version 11) where they are not ours.
_THEIR_DEFAULTS: Mapping[str, object] = {
    "training_method": "FINE_TUNE",
    "epochs": 100,
    "learning_rate": 3e-6,
    "train_dtype": "FLOAT_16",
    "fallback_train_dtype": "BFLOAT_16",
    "ema_update_step_interval": 5,
    "lora_alpha": 1.0,
    "layer_filter_preset": "full",
    "cache_dir": "workspace-cache/run",
    "sample_image_format": "JPG",
    "non_ema_sampling": True,
    "output_dtype": "FLOAT_32",
    "output_model_destination": "models/model.safetensors",
    "include_train_config": "NONE",
}
_MAX_NAMED = 8
_PARTLY_USED = (
    "unet", "transformer", "text_encoder", "text_encoder_2", "text_encoder_3", "vae", "concepts", "samples",
    "additional_embeddings"
)  # fmt: skip


def to_darkroom_1(tree: Tree, notes: Notes) -> Tree:
    """Return our tree for an OneTrainer tree of version 11, complete or sparse; unsupported keys are reported."""
    given = {k: v for k, v in copy.deepcopy(tree).items() if not k.startswith("__")}
    rest = {**_THEIR_DEFAULTS, **given}
    rest.pop("secrets", None)  # reported when they are removed, before any migration
    accumulation = number(rest.get("gradient_accumulation_steps", 1))
    if accumulation is not None:
        rest["gradient_accumulation_steps"] = int(accumulation)
    steps_per_update = max(1, int(accumulation or 1))
    result: Tree = {}
    model_of(rest, result, notes)
    training_of(rest, result, notes, steps_per_update)
    adapter_of(rest, result, notes)
    data_of(rest, result, notes)
    evaluation_of(rest, result, notes, steps_per_update)
    parts_of(rest, result, notes, steps_per_update)
    embeddings_of(rest, result, notes, steps_per_update)
    devices_of(rest, result, notes)
    concepts_of(rest, result, notes)
    samples_of(rest, result, notes)
    if rest:
        result["unknown"] = {"onetrainer": rest}
        message = f"These settings have no effect here and are kept unchanged: {_named(rest)}."
        notes.append(Problem("", message, "info"))
    return result


def _named(rest: Tree) -> str:
    """Return the first few names, and how many more there are."""
    keys = sorted(rest)
    more = f" and {len(keys) - _MAX_NAMED} more" if len(keys) > _MAX_NAMED else ""
    return ", ".join(cut(_name(key, rest[key]), max_chars=60) for key in keys[:_MAX_NAMED]) + more


def _name(key: str, value: object) -> str:
    """Return a name, with the names inside if the rest of the object is used."""
    if key not in _PARTLY_USED:
        return cut(key, max_chars=40)
    inside = [
        name for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict) for name in item
    ]
    return f"{key} ({', '.join(dict.fromkeys(inside))})" if inside else key
