"""ai-toolkit's datasets and samples.

There, a dataset with several resolutions counts as one dataset for each; here each use of an image has one of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from modules.config.imports.control_images import ai_toolkit_folders, ai_toolkit_samples, set_variant
from modules.config.imports.kohya_dataset import images_of_epoch
from modules.config.imports.kohya_values import Args, flag_of, is_set, number_of, pop_first
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.system.problem import Problem, quote

_EXTENSIONS = (".txt", ".caption")
# Keys that have no effect here: workers, caches (always used here), and settings that are always on here.
_WITHOUT_EFFECT = (
    *("type", "num_workers", "prefetch_factor", "cache_latents", "cache_latents_to_disk", "cache_text_embeddings"),
    *("fast_image_size", "debug", "num_frames", "shrink_video_to_frames", "do_i2v", "fps", "scale", "caption_type"),
)
_TRIGGER = ("[trigger]", "[name]")


def datasets(sets: list[Any], trigger: str, train: Args, result: Tree, notes: Notes) -> float:
    """Convert the datasets, whose keys are popped, and return the number of images in an epoch, 0 if unknown."""
    given = [one for one in sets if isinstance(one, dict)]
    sizes = [_resolutions(one.pop("resolution", 512)) for one in given]
    shared = sorted({side for one in sizes for side in one}) or [512]
    put(result, "data.resolution_px", shared)
    put(result, "data.never_upscale", True)
    has_buckets = [flag_of(one.pop("buckets", True)) for one in given]
    put(result, "data.aspect_ratio_bucketing", all(has_buckets))
    steps = {int(n) for one in given if (n := number_of(one.pop("bucket_tolerance", None)))}
    if steps:
        put(result, "data.bucket_step_px", min(steps))
    _dropout(given, result, notes)
    concepts = []
    for one, own_sizes in zip(given, sizes, strict=True):
        concept = _concept(one, trigger, train, result, notes)
        if sorted(set(own_sizes)) != shared:
            concept.setdefault("image", {})["resolution_px"] = sorted(set(own_sizes))
        concepts.append(concept)
    put(result, "concepts", concepts)
    set_variant(concepts, result, notes)
    train.pop("reg_weight", None)
    train.pop("cache_text_embeddings", None)
    return images_of_epoch(concepts)


def _resolutions(value: object) -> list[int]:
    sides = (number_of(side) for side in (value if isinstance(value, list) else [value]))
    return [int(side) for side in sides if side and side >= 1] or [512]


def _dropout(given: list[Args], result: Tree, notes: Notes) -> None:
    rates = [number_of(one.pop("caption_dropout_rate", 0)) or 0 for one in given]
    if any(rates):
        put(result, "data.caption_dropout", max(rates))
    if len(set(rates)) > 1:
        message = f"The datasets have several caption dropout rates; {max(rates):g} is used for all."
        notes.append(Problem("data.caption_dropout", message, "warning"))


def _concept(given: Args, shared_trigger: str, train: Args, result: Tree, notes: Notes) -> dict[str, Any]:
    for key in _WITHOUT_EFFECT:
        given.pop(key, None)
    folder = str(pop_first(given, "folder_path", "dataset_path") or "")
    concept: dict[str, Any] = {
        "name": Path(folder).name,
        "path": folder,
        "include_subfolders": True,
        "repeats": number_of(given.pop("num_repeats", 1)) or 1,
        "text": _text(given, str(pop_first(given, "trigger_word") or shared_trigger)),
    }
    if flag_of(given.pop("is_reg", False)):
        concept |= {"kind": "regularization", "loss_weight": number_of(train.get("reg_weight")) or 1.0}
    weight = number_of(given.pop("loss_multiplier", 1.0))
    if weight is not None and weight != 1.0:
        concept["loss_weight"] = weight * concept.get("loss_weight", 1.0)
    extension = f".{str(given.pop('caption_ext', None) or 'txt').lstrip('.')}"
    if extension in _EXTENSIONS:
        concept["caption_extension"] = extension
    else:
        notes.append(Problem("concepts", f"Captions in {quote(extension)} files are not supported.", "warning"))
    if caption := str(pop_first(given, "default_caption") or "").strip():
        concept["default_caption"] = caption
    if number_of(given.get("network_weight")) == 1.0:
        del given["network_weight"]
    if image := _image(given, result) | ai_toolkit_folders(given, notes):
        concept["image"] = image
    return concept


def _text(given: Args, trigger: str) -> dict[str, Any]:
    """Return the caption settings: [trigger] in a caption is the trigger word, and a caption without it gets it."""
    text: dict[str, Any] = {"choice": "first", "replacements": "\n".join(f"{mark} => {trigger}" for mark in _TRIGGER)}
    if not trigger:
        del text["replacements"]
    else:
        text["trigger_word"] = trigger
    keep = number_of(given.pop("keep_tokens", 0)) or 0
    is_shuffled = flag_of(given.pop("shuffle_tokens", False))
    dropout = number_of(given.pop("token_dropout_rate", 0))
    if is_shuffled:
        text["shuffle_tags"] = True
    if dropout:
        text |= {"tag_dropout": True, "tag_dropout_mode": "random", "tag_dropout_probability": dropout}
    if is_shuffled or dropout:
        text["keep_tags_count"] = int(keep)
    return text


def _image(given: Args, result: Tree) -> dict[str, Any]:
    """Return the augmentations and masks of a dataset; masks switch masked training on."""
    image: dict[str, Any] = {}
    if flag_of(given.pop("flip_x", False)):
        image["flip"] = "random"
    if flag_of(given.pop("random_crop", False)):
        image["crop_jitter"] = True
    is_alpha, folder = flag_of(given.pop("alpha_mask", False)), pop_first(given, "mask_path")
    lowest = number_of(given.pop("mask_min_value", 0))
    if is_alpha or folder is not None:
        image |= (
            {"mask_source": "folder", "masks_folder": str(folder)} if folder is not None else {"mask_source": "alpha"}
        )
        put(result, "masks.enabled", True)
        put(result, "masks.unmasked_weight", lowest or 0.0)
    return image


# Samples. Flags in a prompt: sd-scripts' flags, and longer names for some of them.

_FLAG = re.compile(r"--(\w+)(?:\s+|$)")
_FIELDS = {
    **{"w": "width_px", "h": "height_px", "d": "seed", "seed": "seed", "l": "guidance", "cfg": "guidance"},
    **{"s": "steps", "steps": "steps", "n": "negative_prompt"},
}
_OF_SAMPLE = {
    **{"width": "width_px", "height": "height_px", "seed": "seed", "guidance_scale": "guidance"},
    **{"sample_steps": "steps", "neg": "negative_prompt"},
}
_WHOLE = ("width_px", "height_px", "seed", "steps")
_SIDE_STEP_PX = 8
_DEFAULTS = {"width": 512, "height": 512, "seed": 0, "guidance_scale": 7, "sample_steps": 20, "neg": ""}


def samples(given: Args, trigger: str, train: Args, result: Tree, notes: Notes) -> None:
    """Convert the samples, which may have settings of their own, and how often they are generated."""
    every = number_of(given.pop("sample_every", 100)) or 0
    start = number_of(given.pop("sample_start_step", 0))
    steps_per_update = max(1.0, number_of(train.get("gradient_accumulation_steps")) or 1.0)
    is_off = flag_of(train.pop("disable_sampling", False)) or not every
    put(result, "sampling.every", {"unit": "never"} if is_off else {"n": every / steps_per_update, "unit": "step"})
    put(result, "sampling.at_start", not is_off and not flag_of(train.pop("skip_first_sample", False)))
    put(result, "sampling.at_end", not is_off)
    if start:
        put(result, "sampling.skip_first", {"n": start / steps_per_update, "unit": "step"})
    if str(extension := given.pop("format", None) or "").removeprefix(".") in ("png", "jpg"):
        put(result, "sampling.image_format", str(extension).removeprefix("."))
    walks = flag_of(given.pop("walk_seed", False))
    for key in ("sampler", "num_frames", "fps", "ext"):
        given.pop(key, None)
    common = {key: given.pop(key, default) for key, default in _DEFAULTS.items()}
    prompts = []
    for index, item in enumerate(_items(given)):
        sample = {key: item.pop(key) for key in _OF_SAMPLE if is_set(item.get(key))}
        if walks and "seed" not in sample:
            sample["seed"] = (number_of(common["seed"]) or 0) + index
        references = ai_toolkit_samples(item)
        prompts.append(_prompt(str(item.pop("prompt", "")), {**common, **sample}, trigger) | references)
        if item:
            given.setdefault("samples", []).append(item)
    put(result, "sampling.prompts", prompts)
    if not prompts and not is_off:
        notes.append(Problem("sampling.prompts", "The config has no sample prompts.", "info"))


def _items(given: Args) -> list[Args]:
    listed, texts = given.pop("samples", None), given.pop("prompts", None)
    items = listed if isinstance(listed, list) else texts if isinstance(texts, list) else []
    return [dict(item) if isinstance(item, dict) else {"prompt": str(item)} for item in items if is_set(item)]


def _prompt(text: str, values: Args, trigger: str) -> dict[str, Any]:
    prompt, *flags = _FLAG.split(text)
    for mark in _TRIGGER:
        prompt = prompt.replace(mark, trigger)
    fields = {_OF_SAMPLE[key]: value for key, value in values.items()}
    fields |= {_FIELDS[n]: v.strip() for n, v in zip(flags[::2], flags[1::2], strict=True) if n in _FIELDS}
    sample: dict[str, Any] = {"prompt": prompt.strip()}
    for field, value in fields.items():
        if field == "negative_prompt":
            sample[field] = str(value) if is_set(value) and value is not False else ""
        elif (number := number_of(value)) is not None:
            sample[field] = int(number) if field in _WHOLE else number
    for side in ("width_px", "height_px"):
        if side in sample:
            sample[side] -= sample[side] % _SIDE_STEP_PX
    if sample.get("seed", 0) < 0:
        sample |= {"seed": 0, "random_seed": True}
    return sample
