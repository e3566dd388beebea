"""kohya's image folders, sizes, captions and caches."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from modules.config.imports.control_images import CONTROL_KEYS, concept_of_rows, musubi_folders, musubi_sizes
from modules.config.imports.kohya_values import Args, flag_of, is_set, number_of, pop_first, sides_of
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.data.listing import SUFFIXES
from modules.system.problem import Problem, quote

_OF_DATASETS = {
    "resolution": "resolution",
    "batch_size": "train_batch_size",
    **{key: key for key in ("enable_bucket", "bucket_no_upscale", "bucket_reso_steps")},
}
_DROPOUT = "caption_dropout_rate"
_MAX_FILES = 200_000
_REPEATED = re.compile(r"(\d+)_(.*)")  # 10_sks dog


def images(given: Args, result: Tree, notes: Notes) -> None:
    """Convert the folders, the image sizes and the caches."""
    _sizes(given, result, notes)
    if is_set(given.get("cache_latents")) or is_set(given.get("cache_latents_to_disk")):
        wanted = [flag_of(given.pop(k, False)) for k in ("cache_latents", "cache_latents_to_disk")]
        put(result, "data.latent_cache", any(wanted))
    texts = [flag_of(given.pop(k, False)) for k in ("cache_text_encoder_outputs", "cache_text_encoder_outputs_to_disk")]
    if any(texts):
        put(result, "data.text_cache", True)
    if dropout := number_of(pop_first(given, "caption_dropout_rate")):
        put(result, "data.caption_dropout", dropout)
    if flag_of(given.pop("weighted_captions", False)):
        put(result, "model.family.prompt_weighting", True)
    workers = number_of(pop_first(given, "max_data_loader_n_workers"))
    if workers:
        put(result, "data.loader_threads", max(1, int(workers)))
    musubi_sizes(given, result, notes)
    concepts = [*_from_dataset_config(given, notes), *_from_folders(given, notes), *_from_metadata(given)]
    shared = {**_augmentations(given), **caption_settings(given, notes)}
    concepts = [{**shared, **concept} for concept in concepts]
    put(result, "concepts", concepts)
    _masked_training(given, concepts, result, notes)


def images_of_epoch(concepts: Sequence[dict[str, Any]]) -> float:
    """Return how many images an epoch of concepts has, counting repeats; 0 if the images of a folder are not found.

    An epoch has as many regularization images as others, here and in the other programs.
    """
    counts: dict[bool, list[float]] = {False: [], True: []}
    for concept in concepts:
        found = _num_images(concept["path"], has_subfolders=concept.get("include_subfolders", False))
        counts[concept.get("kind") == "regularization"].append(found * concept["repeats"])
    trained, matched = counts.values()
    return sum(trained) * (2 if any(matched) else 1) if all(trained) else 0


def _num_images(folder: str, *, has_subfolders: bool) -> int:
    """Return the images in a folder; 0 if it cannot be read."""
    try:
        found = Path(folder).rglob("*") if has_subfolders else Path(folder).glob("*")
        return sum(path.suffix.lower() in SUFFIXES for path in islice(found, _MAX_FILES)) if folder else 0
    except (OSError, ValueError):
        return 0


def _sizes(given: Args, result: Tree, notes: Notes) -> None:
    size = sides_of(pop_first(given, "max_resolution", "resolution") or 512)
    if size is not None:
        width_px, height_px = size
        side_px = round(math.sqrt(width_px * height_px))
        put(result, "data.resolution_px", [side_px])
        if width_px != height_px:
            message = f"The size {width_px}x{height_px} was converted to the area of a {side_px} px square."
            notes.append(Problem("data.resolution_px", message, "info"))
    has_buckets = given.pop("enable_bucket", None)
    put(result, "data.aspect_ratio_bucketing", flag_of(has_buckets) if is_set(has_buckets) else False)
    if step_px := number_of(pop_first(given, "bucket_reso_steps")):
        put(result, "data.bucket_step_px", int(step_px))
    if flag_of(given.pop("bucket_no_upscale", False)):
        put(result, "data.never_upscale", True)
    pop_first(given, "min_bucket_reso", "max_bucket_reso", "bucket_info")


def lift_dataset_settings(given: Args, notes: Notes) -> None:
    """Move what is a setting of a run here from the datasets of a dataset config to the run, unless the run has it.

    These are size, batch size and buckets, of which the first dataset that has them decides, and the caption dropout.
    What is not read is moved, too, so that it is reported with the other settings that are left.
    """
    datasets = given.get("datasets")
    _lift_caption_dropout(given, notes)
    for source in _sources(given):
        given.update({f"datasets.{key}": value for key, value in source.items() if key not in _READ and is_set(value)})
    for source in (given.get("general"), *(datasets if isinstance(datasets, list) else [])):
        for theirs, ours in _OF_DATASETS.items():
            if isinstance(source, dict) and is_set(source.get(theirs)) and not is_set(given.get(ours)):
                given[ours] = source[theirs]


def _sources(given: Args) -> list[Args]:
    """Return the general settings of a dataset config, its datasets and their subsets."""
    datasets = given.get("datasets")
    sources = [given.get("general"), *(datasets if isinstance(datasets, list) else [])]
    found = [source for source in sources if isinstance(source, dict)]
    inner = (source.get("subsets") for source in found)
    return found + [one for subsets in inner if isinstance(subsets, list) for one in subsets if isinstance(one, dict)]


def _lift_caption_dropout(given: Args, notes: Notes) -> None:
    """Move the caption dropout to the run, which has one for all images here."""
    rates = [rate for source in _sources(given) if (rate := number_of(source.get(_DROPOUT))) is not None]
    if not rates or is_set(given.get(_DROPOUT)):
        return
    given[_DROPOUT] = max(rates)
    if len(set(rates)) > 1:
        message = f"The datasets have several caption dropout rates; {max(rates):g} is used for all."
        notes.append(Problem("data.caption_dropout", message, "warning"))


def _from_folders(given: Args, notes: Notes) -> list[dict[str, Any]]:
    """Return a concept for each subfolder with repeats in its name, of training and regularization images.

    A folder with a metadata file (`in_json`) is one concept.
    """
    concepts: list[dict[str, Any]] = []
    metadata_file = pop_first(given, "in_json")
    for key, shared in (("train_data_dir", {"loss_weight": 1.0}), ("reg_data_dir", _regularization(given))):
        folder = pop_first(given, key)
        if folder is None:
            continue
        if metadata_file is not None and key == "train_data_dir":
            path = Path(str(folder))
            repeats = number_of(pop_first(given, "dataset_repeats")) or 1
            concepts.append({"name": path.name, "path": str(path), "repeats": repeats, **_metadata(metadata_file)})
            continue
        subfolders = _repeated_folders(Path(str(folder)))
        if not subfolders:
            message = f"{quote(folder)} has no sub-folders with repeats (10_name) or is missing; it became one concept."
            notes.append(Problem("concepts", message, "info"))
            subfolders = [(Path(str(folder)), 1, "")]
        concepts += [
            {"name": name or path.name, "path": str(path), "repeats": repeats, **shared, **_caption_of_others(name)}
            for path, repeats, name in subfolders
        ]
    return concepts


def _regularization(given: Args) -> dict[str, Any]:
    return {"kind": "regularization", "loss_weight": number_of(given.get("prior_loss_weight")) or 1.0}


def _metadata(file: object) -> dict[str, Any]:
    return {"caption_source": "metadata", "metadata_file": str(file), "include_subfolders": True}


def _caption_of_others(caption: str) -> dict[str, Any]:
    """Return the field for the caption of images without a caption file (kohya's class tokens)."""
    return {"default_caption": caption} if caption else {}


def _masked_training(given: Args, concepts: list[dict[str, Any]], result: Tree, notes: Notes) -> None:
    """Enable masked training for `masked_loss` with a folder of masks, and for `alpha_mask`, which works on its own.

    Black areas have no weight in sd-scripts, and small masks count less than large ones.
    """
    sources = {concept.get("image", {}).get("mask_source") for concept in concepts}
    is_masked = flag_of(given.pop("masked_loss", False))
    if "alpha" in sources or (is_masked and "folder" in sources):
        put(result, "masks.enabled", True)
        put(result, "masks.unmasked_weight", 0.0)
    elif is_masked:
        message = "The file turns on masked_loss but names no masks (conditioning_data_dir or alpha_mask)."
        notes.append(Problem("masks.enabled", f"{message} Masked training stays off.", "warning"))


def _masks(given: Args) -> dict[str, Any]:
    """Return where the masks of a folder are. If both kinds are set, sd-scripts uses the mask images."""
    is_alpha = flag_of(given.pop("alpha_mask", False))
    if (folder := pop_first(given, "conditioning_data_dir")) is not None:
        return {"mask_source": "folder", "masks_folder": str(folder)}
    return {"mask_source": "alpha"} if is_alpha else {}


def _augmentations(given: Args) -> dict[str, Any]:
    """Return the image augmentations and the masks of a folder, or those that apply to every folder."""
    image: dict[str, Any] = _masks(given)
    if flag_of(given.pop("flip_aug", False)):
        image["flip"] = "random"
    if flag_of(given.pop("random_crop", False)):
        image["crop_jitter"] = True
    return {"image": image} if image else {}


def _repeated_folders(folder: Path) -> list[tuple[Path, int, str]]:
    try:
        names = sorted(p.name for p in folder.iterdir() if p.is_dir())
    except (OSError, ValueError):
        return []
    matches = [(name, match) for name in names if (match := _REPEATED.fullmatch(name))]
    return [(folder / name, int(match[1]), match[2]) for name, match in matches]


def _from_dataset_config(given: Args, notes: Notes) -> list[dict[str, Any]]:
    """Return a concept for each subset of a dataset config ([[datasets]] with [[datasets.subsets]])."""
    datasets = given.pop("datasets", None)
    general = given.pop("general", None)
    defaults = general if isinstance(general, dict) else {}
    concepts: list[dict[str, Any]] = []
    for dataset in datasets if isinstance(datasets, list) else []:
        if not isinstance(dataset, dict):
            continue
        subsets = dataset.get("subsets")
        if is_set(dataset.get("image_directory")):  # musubi-tuner's datasets have no subsets
            subsets = [{"image_dir": dataset["image_directory"]}]
        elif is_set(dataset.get("image_jsonl_file")):
            subsets = [{}]
        for subset in subsets if isinstance(subsets, list) else []:
            merged = {**defaults, **dataset, **subset} if isinstance(subset, dict) else {}
            if is_set(file := merged.get("image_jsonl_file")) and (found := concept_of_rows(str(file), notes)):
                concepts.append(found | {"repeats": number_of(merged.get("num_repeats")) or 1})
            elif (concept := _from_subset(merged, notes)) is not None:
                concepts.append(concept | (_regularization(given) if flag_of(merged.get("is_reg")) else {}))
    if isinstance(datasets, list) and not concepts:
        notes.append(Problem("concepts", "The dataset config contains no image folder.", "warning"))
    return concepts


def _from_subset(given: Args, notes: Notes) -> dict[str, Any] | None:
    """Return the concept of a subset with the settings of its dataset; None if it has no folder."""
    folder, metadata_file = (v if is_set(v := given.get(key)) else None for key in ("image_dir", "metadata_file"))
    if folder is None and metadata_file is None:
        return None
    path = Path(str(folder)) if folder is not None else Path(str(metadata_file)).parent
    concept: dict[str, Any] = {
        "name": path.name,
        "path": str(path),
        "repeats": number_of(given.get("num_repeats")) or 1,
        **_augmentations(given),
    }
    if controls := musubi_folders(given, notes):
        concept["image"] = {**concept.get("image", {}), **controls}
    if any(is_set(given.get(key)) for key in CAPTION_KEYS):
        concept |= caption_settings(given, notes)
    if metadata_file is not None:
        return concept | _metadata(metadata_file)
    return concept | _caption_of_others(str(given.get("class_tokens") or "").strip())


def _from_metadata(given: Args) -> list[dict[str, Any]]:
    """Return a concept for each folder in a file's metadata, which contain names and repeats but no paths."""
    folders = given.pop("dataset_dirs", None)
    concepts = []
    for name, facts in folders.items() if isinstance(folders, dict) else ():
        repeats = number_of(facts.get("n_repeats")) if isinstance(facts, dict) else None
        match = _REPEATED.fullmatch(str(name))
        concepts.append({"name": match[2] if match else str(name), "path": "", "repeats": repeats or 1})
    return concepts


# kohya's caption settings, of a whole run or of one subset of a dataset config.

_EXTENSIONS = (".txt", ".caption")
_TEXTS = {
    "keep_tokens_separator": "keep_tags_separator",
    "secondary_separator": "tag_group_separator",
    "caption_separator": "tag_delimiter",
    "caption_prefix": "prefix",
    "caption_suffix": "suffix",
}
CAPTION_KEYS = (
    "shuffle_caption",
    "keep_tokens",
    "caption_tag_dropout_rate",
    "enable_wildcard",
    "caption_extension",
    "caption_extention",
    *_TEXTS,
)
# The keys of a dataset config that are read, or that have no effect here, such as the place of its cache.
_READ = frozenset((
    *("subsets", _DROPOUT, *CAPTION_KEYS, *_OF_DATASETS, "min_bucket_reso", "max_bucket_reso"),
    *("image_dir", "image_directory", "image_jsonl_file", "metadata_file", "num_repeats", "class_tokens", "is_reg"),
    *("flip_aug", "random_crop", "alpha_mask", "conditioning_data_dir", *CONTROL_KEYS),
    *("cache_directory", "cache_info", "skip_cache_check"),
))  # fmt: skip


def caption_settings(given: Args, notes: Notes) -> dict[str, Any]:
    """Return the fields of a concept for kohya's caption settings, which are popped.

    Of a file with several lines kohya's trainers use the first, or with wildcards any.
    """
    text: dict[str, Any] = {}
    has_wildcards = flag_of(given.pop("enable_wildcard", False))
    text |= {"wildcards": True} if has_wildcards else {"choice": "first"}
    keep = number_of(pop_first(given, "keep_tokens"))
    if flag_of(given.pop("shuffle_caption", False)):
        text["shuffle_tags"] = True
    dropout = number_of(pop_first(given, "caption_tag_dropout_rate"))
    if dropout:
        text |= {"tag_dropout": True, "tag_dropout_mode": "random", "tag_dropout_probability": dropout}
    if "shuffle_tags" in text or dropout:
        text["keep_tags_count"] = int(keep or 0)
    for theirs, ours in _TEXTS.items():
        if (value := pop_first(given, theirs)) is not None:
            text[ours] = str(value)
    return {"text": text, **_extension(given, notes)}


def _extension(given: Args, notes: Notes) -> dict[str, Any]:
    extension = pop_first(given, "caption_extension", "caption_extention")  # sd-scripts accepts its old misspelling
    if not is_set(extension) or extension == ".txt":
        return {}
    if extension in _EXTENSIONS:
        return {"caption_extension": extension}
    notes.append(Problem("concepts", f"Captions in {quote(extension)} files are not supported.", "warning"))
    return {}
