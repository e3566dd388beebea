"""OneTrainer's lists, of concepts and of samples: each entry is converted on its own, and its unused keys are kept."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from modules.config.migrations.onetrainer_11.tables import family_of, move_all, resolution_of
from modules.config.migrations.tree_moves import (
    Notes,
    Tree,
    choose,
    move_or,
    number,
    pop_object,
    pop_switch,
    put,
    put_back,
)
from modules.families.registry import FAMILIES
from modules.sampling.registry import SAMPLERS
from modules.system.problem import Problem, quote

Convert = Callable[[Tree, Notes, str], Tree]


def convert_list(
    given: object, theirs: str, ours: str, convert: Convert, notes: Notes
) -> tuple[list[Tree], list[Tree]]:
    """Return our entries for their list, and the unused keys of each; invalid entries are reported and left out.

    `theirs` is the name of the entries in messages, `ours` the path of our list.
    """
    if not isinstance(given, list):
        if given is not None:
            notes.append(Problem(ours, f"{quote(given)} is not a list of {theirs}; it is left out.", "warning"))
        return [], []
    entries: list[Tree] = []
    leftovers: list[Tree] = []
    for item in given:
        if not isinstance(item, dict):
            notes.append(
                Problem(ours, f"{quote(item)} in the list of {theirs} is not an object; it is left out.", "warning")
            )
            continue
        left = {k: v for k, v in item.items() if not k.startswith("__")}
        entries.append(convert(left, notes, f"{ours}.{len(entries)}"))
        leftovers.append(left)
    return entries, leftovers if any(leftovers) else []


def is_key(value: object, names: Container[str]) -> bool:
    """Return whether a value is a string and one of the names."""
    return isinstance(value, str) and value in names


def plain(value: object) -> str:
    """Return a short name unchanged, and anything else as messages quote it."""
    return value if isinstance(value, str) and len(value) < 40 else quote(value)


# OneTrainer's concepts, of version 2 or older.

_KINDS = {"STANDARD": "training", "VALIDATION": "validation", "PRIOR_PREDICTION": "prior_prediction"}
_CAPTION_SOURCES = {"sample": "text_file", "filename": "file_name", "concept": "one_file"}
_OF_CONCEPTS = {
    "name": "name",
    "path": "path",
    "seed": "seed",
    "include_subdirectories": "include_subfolders",
    "loss_weight": "loss_weight",
    "image_variations": "image_variations",
    "text_variations": "text_variations",
}
_AUGMENTATIONS = ("flip", "rotate", "brightness", "contrast", "saturation", "hue")
_IMAGE = {
    "random_rotate_max_angle": "rotate_max_degrees",
    "random_brightness_max_strength": "brightness_max",
    "random_contrast_max_strength": "contrast_max",
    "random_saturation_max_strength": "saturation_max",
    "random_hue_max_strength": "hue_max",
    "enable_random_circular_mask_shrink": "circular_mask_shrink",
    "enable_random_mask_rotate_crop": "mask_rotate_crop",
}
_TEXT = {
    "enable_tag_shuffling": "shuffle_tags",
    "tag_delimiter": "tag_delimiter",
    "keep_tags_count": "keep_tags",
    "tag_dropout_enable": "drop_tags",
    "tag_dropout_probability": "drop_probability",
    "tag_dropout_special_tags": "special_tags",
    "tag_dropout_special_tags_regex": "special_tags_regex",
    "caps_randomize_enable": "change_capitals",
    "caps_randomize_mode": "capital_modes",
    "caps_randomize_probability": "capital_probability",
    "caps_randomize_lowercase": "lower_case",
}
_DROP_MODES = {"FULL": "all", "RANDOM": "each", "RANDOM WEIGHTED": "later_rather"}
_SPECIAL_TAGS = {"NONE": "none", "BLACKLIST": "blacklist", "WHITELIST": "whitelist"}


def concepts_of(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the concepts inside the config itself."""
    if (given := rest.pop("concepts", None)) is None:
        return
    entries, leftovers = concepts_from(given, notes)
    put(result, "concepts", entries)
    if leftovers:
        rest["concepts"] = leftovers


def concepts_from(given: object, notes: Notes) -> tuple[list[Tree], list[Tree]]:
    """Return our concepts for their list, and the unused keys of each."""
    return convert_list(given, "concepts", "concepts", _concept, notes)


def _concept(given: Tree, notes: Notes, where: str) -> Tree:
    former = "VALIDATION" if pop_switch(given, "validation_concept", notes, f"{where}.kind") else "STANDARD"
    kind = former if (stated := given.pop("type", None)) is None else stated
    given.pop("concept_stats", None)  # statistics, not settings
    is_known = is_key(kind, _KINDS)
    if not is_known:
        message = f"The concept type {plain(kind)} is not supported; the concept is disabled."
        notes.append(Problem(f"{where}.kind", message, "warning"))
    concept: Tree = {
        "enabled": pop_switch(given, "enabled", notes, f"{where}.enabled", default=True) and is_known,
        "kind": _KINDS[kind] if is_known else "training",
    }
    move_all(given, concept, _OF_CONCEPTS)
    _balancing(given, concept, notes, where)
    image, text = (pop_object(given, key, notes, where) for key in ("image", "text"))
    _captions(text, concept, notes, where)
    concept["image"] = _image(image, notes, where)
    concept["text"] = _text(text, notes, where)
    put_back(given, "image", image)
    put_back(given, "text", text)
    return concept


def _balancing(given: Tree, concept: Tree, notes: Notes, where: str) -> None:
    """Convert the number of repeats of each image, or of samples per epoch, by the balancing strategy."""
    source = "balancing" if "balancing" in given else "repeats"
    balancing = given.pop(source, 1.0)
    given.pop("repeats", None)
    choose(
        given, concept, "balancing_strategy", "balancing", {"REPEATS": "repeats", "SAMPLES": "samples"}, notes,
        where=f"{where}.balancing",
    )  # fmt: skip
    count = number(balancing)
    if concept.get("balancing") == "samples" and count is not None:
        put(concept, "samples_per_epoch", int(count), source=source)
    else:
        put(concept, "repeats", balancing, source=source)


def _captions(text: Tree, concept: Tree, notes: Notes, where: str) -> None:
    choose(text, concept, "prompt_source", "caption_source", _CAPTION_SOURCES, notes, where=f"{where}.caption_source")
    move_all(text, concept, {"prompt_path": "captions_file"})


def _image(given: Tree, notes: Notes, where: str) -> Tree:
    path = f"{where}.image"
    image: Tree = {"crop_jitter": pop_switch(given, "enable_crop_jitter", notes, f"{path}.crop_jitter", default=True)}
    for name in _AUGMENTATIONS:
        is_random = pop_switch(given, f"enable_random_{name}", notes, f"{path}.{name}")
        is_fixed = pop_switch(given, f"enable_fixed_{name}", notes, f"{path}.{name}")
        if is_random or is_fixed:
            image[name] = "random" if is_random else "always"
        if is_random and is_fixed:
            message = f"Both random and fixed {name} are on; random is used."
            notes.append(Problem(f"{path}.{name}", message, "info"))
    move_all(given, image, _IMAGE)
    if pop_switch(given, "enable_resolution_override", notes, f"{path}.resolution_px"):
        resolutions, is_whole = resolution_of(given.get("resolution_override", "512"))
        if is_whole and resolutions:
            put(image, "resolution_px", resolutions, source="resolution_override")
            given.pop("resolution_override", None)
        else:
            value = plain(given.get("resolution_override"))
            message = f"resolution_override = {value} is not a list of resolutions; the general resolution is used."
            notes.append(Problem(f"{path}.resolution_px", message, "warning"))
    elif given.get("resolution_override") == "512":
        del given["resolution_override"]
    return image


def _text(given: Tree, notes: Notes, where: str) -> Tree:
    text: Tree = {}
    for source, name, names in (
        ("tag_dropout_mode", "drop_mode", _DROP_MODES),
        ("tag_dropout_special_tags_mode", "special_tags_mode", _SPECIAL_TAGS),
    ):
        choose(given, text, source, name, names, notes, where=f"{where}.text.{name}")
    move_all(given, text, _TEXT)
    return text


# OneTrainer's samples, of version 0.

_SAMPLERS = {
    "DDIM": "ddim",
    "EULER": "euler",
    "EULER_A": "euler_a",
    "EULER_KARRAS": "euler_karras",
    "DPMPP": "dpmpp",
    "DPMPP_SDE": "dpmpp_sde",
    "DPMPP_KARRAS": "dpmpp_karras",
    "DPMPP_SDE_KARRAS": "dpmpp_sde_karras",
    "UNIPC": "unipc",
    "UNIPC_KARRAS": "unipc_karras",
}
_OF_SAMPLES = {
    "enabled": "enabled",
    "prompt": "prompt",
    "negative_prompt": "negative_prompt",
    "seed": "seed",
    "random_seed": "random_seed",
    "sample_inpainting": "inpainting",
    "base_image_path": "base_image",
    "mask_image_path": "mask_image",
}
# Defaults of missing keys. Those of SD 2 differ, but a list alone does not show which model it is for.
_SIDES_PX = {"sd": 512}
_SIDE_PX = 1024
_WITH_DEFAULT: Mapping[str, tuple[str, object]] = {
    "diffusion_steps": ("steps", 30),
    "cfg_scale": ("guidance", 7.5),
}
# Overwritten by OneTrainer itself before it samples.
_WITHOUT_EFFECT = (*(f"text_encoder_{n}_layer_skip" for n in (1, 2, 3, 4)), "force_last_timestep")


def samples_of(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the samples inside the config itself."""
    if (given := rest.pop("samples", None)) is None:
        return
    entries, leftovers = samples_from(given, notes, family_of(result))
    put(result, "sampling.prompts", entries)
    if leftovers:
        rest["samples"] = leftovers


def samples_from(given: object, notes: Notes, family: str) -> tuple[list[Tree], list[Tree]]:
    """Return our sample prompts for their list, and the unused keys of each; default sizes are the family's.

    OneTrainer samples flow models with Euler, whatever the sampler of the list.
    """
    spec = FAMILIES.get(family)
    ignored: set[str] = set()

    def convert(item: Tree, notes: Notes, where: str) -> Tree:
        sample = _sample(item, notes, where, _SIDES_PX.get(family, _SIDE_PX))
        sampler = SAMPLERS[sample["sampler"]]
        if spec is not None and spec.process.flow is not None and not sampler.supports(spec.process.predictions):
            ignored.add(sampler.label)
            sample["sampler"] = "euler"
        return sample

    converted = convert_list(given, "samples", "sampling.prompts", convert, notes)
    if ignored and spec is not None:
        message = f"OneTrainer samples {spec.label} with Euler, not with {' or '.join(sorted(ignored))}; so does this."
        notes.append(Problem("sampling.prompts", message, "info"))
    return converted


def _sample(given: Tree, notes: Notes, where: str, side_px: int) -> Tree:
    sampler = given.pop("noise_scheduler", "EULER_A")
    if not is_key(sampler, _SAMPLERS):
        message = f"noise_scheduler = {plain(sampler)} is not a known sampler; DDIM is used instead."
        notes.append(Problem(f"{where}.sampler", message, "warning"))
    sample: Tree = {"sampler": _SAMPLERS[sampler] if is_key(sampler, _SAMPLERS) else "ddim"}
    move_all(given, sample, _OF_SAMPLES)
    for source, name in (("width", "width_px"), ("height", "height_px")):
        move_or(given, sample, source, name, side_px)
    for source, (name, default) in _WITH_DEFAULT.items():
        move_or(given, sample, source, name, default)
    for source in _WITHOUT_EFFECT:
        given.pop(source, None)
    return sample
