"""OneTrainer's config version 11 to our version 1: one file for each topic.

Every key is popped from a copy of the file as it is converted; keys that are left are kept under
`unknown["onetrainer"]` and reported. Missing keys have OneTrainer's defaults, not ours, since that is what the file
meant. Settings that exist here but are not supported yet are refused before a run, so there is no note about them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from modules.config.migrations.onetrainer_11.lists import concepts_of, samples_of
from modules.config.migrations.onetrainer_11.model import adapter_of, model_of
from modules.config.migrations.onetrainer_11.other_topics import data_of, devices_of, embeddings_of, evaluation_of
from modules.config.migrations.onetrainer_11.parts import parts_of
from modules.config.migrations.onetrainer_11.tables import family_of
from modules.config.migrations.onetrainer_11.training import PLAIN, training_of
from modules.config.migrations.onetrainer_keys import PARTS
from modules.config.migrations.tree_moves import THEIR_DEFAULTS, Notes, Tree, number, source_of, with_defaults
from modules.families.registry import FAMILIES
from modules.system.problem import Problem, quote, shorten

__all__ = ["to_darkroom_1"]

_MAX_NAMED = 8
# Values of kept keys that mean nothing: OneTrainer's defaults, which every complete file has.
_OFF: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("include", "async_offloading"), (True,)),
    **dict.fromkeys(("attention_mask", "transformer_attention_mask", "dynamic_timestep_shifting"), (False,)),
    **dict.fromkeys(("force_v_prediction", "force_epsilon_prediction"), (False,)),
    **dict.fromkeys((f"text_encoder{n}_layer_skip" for n in ("", "_2", "_3", "_4")), (0,)),
    "rescale_noise_scheduler_to_zero_terminal_snr": (False,),
    "guidance_scale": (1.0,),
    "vb_loss_strength": (1.0,),
    "dropout_probability": (0.0,),
    "text_encoder_sequence_length": (512,),
    "text_encoder_2_sequence_length": (77,),
    "frames": (1, "25"),
    "length": (10.0,),
    "sample_video_format": ("MP4",),
    "sample_audio_format": ("MP3",),
}
_PARTLY_USED = (*PARTS, "concepts", "samples", "additional_embeddings", "optimizer", "quantization")


def to_darkroom_1(tree: Tree, notes: Notes) -> Tree:
    """Return our tree for an OneTrainer tree of version 11, complete or sparse; unsupported keys are reported."""
    given = {k: v for k, v in copy.deepcopy(tree).items() if not k.startswith("__")}
    rest = with_defaults(given, THEIR_DEFAULTS)
    _replace_invalid(rest, notes)
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
    result["unknown"] = {"onetrainer": rest}  # also if it is empty: so the rules know whose defaults the others are
    if rest:
        notes.append(Problem("", _describe_kept(rest, family_of(result)), "info"))
    return result


def _replace_invalid(rest: Tree, notes: Notes) -> None:
    """Cast numbers as OneTrainer does. Where that fails it keeps its own default, which differs from ours.

    Unknown names are left to `choose`.
    """
    for key, default in THEIR_DEFAULTS.items():
        given, name = rest[key], source_of(rest, key) or key
        if isinstance(default, int | float) and not isinstance(default, bool):
            cast = number(given)
            rest[key] = default if cast is None else type(default)(cast)
            is_valid = cast is not None
        else:
            is_valid = isinstance(given, type(default))
            rest[key] = given if is_valid else default
        if not is_valid:
            message = f"{name} = {quote(given)} is not valid; OneTrainer's default, {default}, is used instead."
            notes.append(Problem(PLAIN.get(key, ""), message, "warning"))


def _describe_kept(rest: Tree, family: str) -> str:
    """Return the sentence on the kept settings, which names those that the file sets for this type of model.

    The others, of other types of models or with the values that every complete file has, are counted if they are many.
    """
    foreign = {*PARTS, "embedding"} - {part.name for part in FAMILIES[family].parts}
    keys = sorted(rest, key=lambda key: (key in foreign or not _is_set(key, rest[key]), key))
    num_set = sum(key not in foreign and _is_set(key, rest[key]) for key in keys)
    num_named = len(keys) if len(keys) <= _MAX_NAMED else min(num_set, _MAX_NAMED)
    names = [shorten(key if key in foreign else _name(key, rest[key]), max_chars=60) for key in keys[:num_named]]
    if not names:
        return f"{len(keys)} settings of other types of models, or with OneTrainer's defaults, are kept unchanged."
    more = f" and {len(keys) - num_named} more" if num_named < len(keys) else ""
    return f"These settings have no effect here and are kept unchanged: {', '.join(names)}{more}."


def _is_set(key: str, value: object) -> bool:
    """Return whether a kept value, or any value inside it, differs from what every complete file contains."""
    match value:
        case dict():
            return any(_is_set(name, inner) for name, inner in value.items() if name != "__version")
        case list():
            return any(_is_set(key, item) for item in value)
        case _:
            return value not in (None, "") and value not in _OFF.get(key, ())


def _name(key: str, value: object) -> str:
    """Return a name, with the names inside if the rest of the object is used; those that are set, if there are any."""
    if key not in _PARTLY_USED:
        return shorten(key, max_chars=60)
    items = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]
    named = [(name, _is_set(name, item[name])) for item in items for name in item if not name.startswith("__")]
    inside = [name for name, is_set in named if is_set] or [name for name, _ in named]
    return f"{key} ({', '.join(dict.fromkeys(inside))})" if inside else key
