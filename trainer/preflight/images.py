"""Checks of the concepts' folders and their images, and of the images that samples use."""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from modules.config.schema import Config
from modules.config.sections.evaluation import REFERENCE_IMAGES, SamplePrompt
from modules.config.usage import inpaints, inputs_of, reads_depth, reads_references
from modules.data.archives import open_file
from modules.data.concept import Concept
from modules.data.dataset import Dataset
from modules.data.hub import HUB_FORM, HUB_SCHEME, HubDataset
from modules.data.image_settings import CONDITIONING_FOLDERS
from modules.data.images import open_image, upright
from modules.data.listing import SkippedEntry
from modules.data.references import ASPECT_TOLERANCE
from modules.data.source_image import SourceImage
from modules.data.tables import ROW_SUFFIX
from modules.families.spec import VARIANT_LABELS
from modules.system.file_errors import plain_reason
from modules.system.paths import from_root
from modules.system.problem import Problem, agree, count, list_first, shorten
from trainer.preflight.model_files import kind_of
from trainer.preflight.places import real

_MAX_NAMED = 5  # skipped files in one message
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def problems_of_concept_folders(config: Config) -> Iterator[tuple[int, Problem]]:
    """Yield the problems of the concepts' folders, with the index of the concept.

    Concepts on the Hugging Face hub that are downloaded have their local folders (`with_local_folders`).
    """
    for index, concept in enumerate(config.concepts):
        if not concept.enabled:
            continue
        path = f"concepts.{index}.path"
        label = label_of(config, index)
        if not concept.path.strip():
            what = "folder" if concept.has_images else "file of prompts"
            yield index, Problem(path, f"The concept {label} has no {what}.", advice=f"Choose a {what} or disable it.")
        elif concept.path.strip().startswith(HUB_SCHEME):
            yield index, _download_problem(concept, path, offline=config.model.offline)
        elif (kind := kind_of(from_root(concept.path))) not in ("folder", "file"):
            folder = shorten(concept.path, max_chars=200)
            what = "folder" if concept.has_images else "file or folder"
            message = f"The {what} {folder} of the concept {label} does not exist."
            advice = "Correct the path or disable the concept."
            if _HUB_NAME.fullmatch(concept.path.strip()):
                advice += f" To use a data set of the Hugging Face hub, enter hf://datasets/{concept.path.strip()}."
            yield index, Problem(path, message, advice=advice)
        elif not os.access(from_root(concept.path), os.R_OK | (os.X_OK if kind == "folder" else 0)):
            message = f"The folder {concept.path} of the concept {label} is not readable."
            yield index, Problem(path, message, advice="Change its permissions.")
        elif _misses_masks_folder(config, concept):
            given = shorten(concept.image.masks_folder, max_chars=200)
            message = (
                f"The masks folder {given} of the concept {label} does not exist."
                if given
                else (f"The concept {label} has its masks in a folder, but none is chosen.")
            )
            advice = "Choose the folder, or another source of masks."
            yield index, Problem(f"concepts.{index}.image.masks_folder", message, advice=advice)
        elif field := _missing_conditioning_folder(config, concept):
            given = shorten(getattr(concept.image, field), max_chars=200)
            message = f"The reference folder {given} of the concept {label} does not exist."
            advice = "Correct the path, or leave it empty for files next to the images."
            yield index, Problem(f"concepts.{index}.image.{field}", message, advice=advice)


def _download_problem(concept: Concept, path: str, *, offline: bool) -> Problem:
    """Return the problem of a concept on the hub without a local folder: a download, or an error."""
    dataset = HubDataset.of(concept.path)
    if dataset is None:
        message = f"{shorten(concept.path, max_chars=200)} is not a data set of the Hugging Face hub."
        return Problem(path, message, advice=f"Enter {HUB_FORM}, also with a revision and a folder: @v1/train.")
    if offline:
        message = f"The data set {dataset.name} has not been downloaded, and offline mode is on."
        return Problem(path, message, advice="Switch off offline mode, or choose a folder.")
    message = f"The data set {dataset.name} is downloaded from Hugging Face at the start; its images are checked then."
    return Problem(path, message, "info", "To check them before, run the verb cache.")


def _misses_masks_folder(config: Config, concept: Concept) -> bool:
    image = concept.image
    if image.mask_source != "folder" or not (config.masks.enabled or inpaints(config) or image.mask_rotate_crop):
        return False
    return not image.masks_folder.strip() or kind_of(from_root(image.masks_folder)) != "folder"


def _missing_conditioning_folder(config: Config, concept: Concept) -> str:
    """Return the setting of a concept that names a folder of conditioning images that does not exist; or ""."""
    num_read = max((i.reference or 1 for i in inputs_of(config) if i.suffix), default=0)
    folders = zip(CONDITIONING_FOLDERS[:num_read], concept.image.conditioning_folders, strict=False)
    return next((name for name, folder in folders if folder is not None and kind_of(folder) != "folder"), "")


def problems_of_images(config: Config, training: Dataset, validation: Dataset) -> Iterator[Problem]:
    """Yield the problems of the images that were found, as far as their headers show."""
    yield from _empty_concepts(config, training, validation)
    reported = [from_root(c.path) for c in _without_images(config, training, validation)]
    skipped = [
        s
        for s in (*training.skipped, *validation.skipped)
        # Wrong settings are reported with the captions.
        if not s.setting and not any(_is_in(s.path, f) for f in reported)
    ]
    files, parts = [s for s in skipped if not s.is_part], [s for s in skipped if s.is_part]
    if faulty := [s for s in files if not s.is_too_small]:
        advice = "Repair them, or remove them from the folder." if len(faulty) > 1 else "Repair or remove it."
        yield Problem("concepts", f"{_count_skipped(faulty)}.", "warning", advice)
    if small := [s for s in files if s.is_too_small]:
        yield Problem("concepts", f"{_count_skipped(small)}.", "warning", _advice_on_small_images(config))
    if normal := [s for s in parts if s.is_normal]:
        yield Problem("concepts", f"{_list_names(normal)}.", "info")
    if wrong := [s for s in parts if not s.is_normal]:
        yield Problem("concepts", f"{_list_names(wrong)}.", "warning", "Correct these rows, or remove them.")
    yield from _same_pairs(training)
    yield from _folders_used_twice(config)
    yield from _trained_and_validated(config, training, validation)


def _same_pairs(training: Dataset) -> Iterator[Problem]:
    """Yield how many pairs have the same image twice: nothing is learned from them. Only equal sizes are read."""
    digests: dict[Path, bytes] = {}
    same = [
        image.path
        for image in (e.image for e in training.examples)
        if image.rejected is not None
        and image.path.suffix != ROW_SUFFIX  # the size of an image in a Parquet file is not known
        and _facts(image) == _facts(image.rejected)
        and _digest(image.path, digests) == _digest(image.rejected.path, digests)
    ]
    if same:
        yield Problem(
            "concepts",
            f"{count(len(same), 'pair')} {agree(len(same), 'has')} the same image as the chosen and the "
            "rejected one, from which nothing is learned; "
            f"the first is {same[0].name}.",
            "warning",
            "Remove them.",
        )


def _empty_concepts(config: Config, training: Dataset, validation: Dataset) -> Iterator[Problem]:
    for dataset, kind in ((training, "training"), (validation, "validation")):
        indices = [i for i, c in enumerate(config.concepts) if c.enabled and c.dataset_kind == kind]
        for index, fact in zip(indices, dataset.concepts, strict=True):
            if fact.num_examples:
                continue
            folder = from_root(config.concepts[index].path)
            broken = [s for s in dataset.skipped if _is_in(s.path, folder)]
            are_parts = all(s.is_part for s in broken)
            why = f": {_list_names(broken) if are_parts else _count_skipped(broken)}" if broken else ""
            what, advice = "readable image", "Check the folder, or include its subfolders."
            if not config.concepts[index].has_images:
                what = "prompt"
                if folder.is_file():
                    advice = "Write a prompt per line; empty lines and lines that begin with # are left out."
                    if folder.suffix.lower() != ".txt":
                        advice = "Check the file: each row has a prompt in its column text, caption or prompt."
            elif config.concepts[index].holds_pairs:
                what = "pair of images"
                advice = (
                    "Put the images into its subfolders chosen and rejected, with the same name for both images of a "
                    "pair, or name them in the columns chosen and rejected of metadata.jsonl, .csv or .parquet."
                )
            message = f"The concept {fact.name} contains no {what}{why}."
            if broken and all(s.is_too_small for s in broken):
                message = f"The concept {fact.name} has no {what.removeprefix('readable ')} that is large enough{why}."
                advice = _advice_on_small_images(config)
            yield Problem(f"concepts.{index}.path", message, advice=advice)


def _advice_on_small_images(config: Config) -> str:
    """Return the ways to train images that are left out for their size."""
    ways = ["lower the minimum size"] if config.data.min_side_px else []
    ways += ["switch off Never upscale"] if config.data.never_upscale else []
    return f"To train them, {' or '.join(ways)}, or use larger images."


def _without_images(config: Config, training: Dataset, validation: Dataset) -> Iterator[Concept]:
    for dataset, kind in ((training, "training"), (validation, "validation")):
        concepts = [c for c in config.concepts if c.enabled and c.dataset_kind == kind]
        yield from (c for c, fact in zip(concepts, dataset.concepts, strict=True) if not fact.num_examples)


def _is_in(path: Path, source: Path) -> bool:
    return path == source or source in path.parents


def _count_skipped(files: Sequence[SkippedEntry]) -> str:
    """Return how many files are skipped, the first few with their reasons; `check` lists all (`Preview.skipped`)."""
    return f"{count(len(files), 'file')} {agree(len(files), 'is')} skipped ({_list_names(files)})"


def _list_names(skipped: Sequence[SkippedEntry]) -> str:
    return list_first([f"{s.path.name}: {s.reason}" for s in skipped], _MAX_NAMED, separator="; ")


def _folders_used_twice(config: Config) -> Iterator[Problem]:
    """Yield the concepts whose folder is the same as of an earlier concept of its kind."""
    first: dict[tuple[str, bool, str], int] = {}
    for index, concept in enumerate(config.concepts):
        if not concept.enabled:
            continue
        earlier = first.setdefault((concept.dataset_kind, concept.has_images, real(concept.path)), index)
        if earlier != index:
            yield Problem(
                f"concepts.{index}.path",
                f"{concept.path} is also the source of the concept {label_of(config, earlier)}, so its "
                f"{'images' if concept.has_images else 'prompts'} are used twice.",
                "warning",
                "Disable one of the two. To give images more weight, raise the repeats instead.",
            )


def _trained_and_validated(config: Config, training: Dataset, validation: Dataset) -> Iterator[Problem]:
    """Yield how many images are used for both training and validation: their loss does not measure generalization."""
    trained = [e.image for e in training.examples if e.image.has_image]
    shared = _shared_images(trained, [e.image for e in validation.examples])
    if not shared:
        return
    owner = {e.image.path: e.concept for e in validation.examples}
    indices = [i for i, c in enumerate(config.concepts) if c.enabled and c.dataset_kind == "validation"]
    first = shared[0]
    verb = "image is" if len(shared) == 1 else "images are"
    yield Problem(
        f"concepts.{indices[owner[first]]}.path",
        f"{len(shared)} {verb} used for both training and validation, the first is {first.name}. The validation loss "
        "of these images does not show how well the model generalizes.",
        "warning",
        "Remove them from one of the two concepts.",
    )


def _shared_images(trained: Sequence[SourceImage], validated: Sequence[SourceImage]) -> list[Path]:
    """Return the validation images that are also training images: the same file, or one with the same content.

    Only files of the same size and shape are read.
    """
    by_facts: dict[tuple[int, int, int], list[Path]] = defaultdict(list)
    for image in trained if validated else ():
        by_facts[_facts(image)].append(image.path)
    digests: dict[Path, bytes] = {}
    shared = []
    for image in validated:
        candidates = by_facts.get(_facts(image), [])
        if image.path in candidates or any(_digest(image.path, digests) == _digest(p, digests) for p in candidates):
            shared.append(image.path)
    return shared


def _facts(image: SourceImage) -> tuple[int, int, int]:
    return image.size_bytes, image.width_px, image.height_px


def _digest(path: Path, digests: dict[Path, bytes]) -> bytes:
    if path not in digests:
        try:
            with open_file(path) as file:
                digests[path] = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
        except OSError:  # removed since the scan: equal to no other file
            digests[path] = os.fsencode(path)
    return digests[path]


def label_of(config: Config, index: int) -> str:
    """Return the name of a concept in messages."""
    return config.concepts[index].label_at(index)


# The files of samples of model variants: that they are images, of the sample's aspect ratio.
_LABELS = {
    "base_image": "base image",
    "mask_image": "mask image",
    "depth_image": "depth map",
    "reference_image": "reference image",
    "reference_image_2": "second reference image",
    "reference_image_3": "third reference image",
}


def problems_of_sample_images(config: Config) -> Iterator[Problem]:
    """Yield the files of enabled samples that cannot be read, and a warning for those that are stretched."""
    for index, prompt in enumerate(config.sampling.prompts):
        if prompt.enabled and config.family.seen_with_captions is not None and not prompt.reference_images:
            yield Problem(
                f"sampling.prompts.{index}.reference_image",
                f"Sample {index + 1} has no reference image, which a model of the variant "
                f"{VARIANT_LABELS[config.model.variant]} edits: it shows what the prompt alone gives.",
                "warning",
                "Choose the image that it edits.",
            )
        for name in _image_fields(config, prompt) if prompt.enabled else ():
            if not (file := getattr(prompt, name).strip()):
                continue  # reported by the rules of the settings
            path, label = f"sampling.prompts.{index}.{name}", _LABELS[name]
            try:
                with open_image(from_root(file)) as raw:
                    width_px, height_px = upright(raw).size
            except OSError as error:
                message = f"The {label} of sample {index + 1} cannot be read: {plain_reason(error, names_file=True)}."
                yield Problem(path, message, advice="Choose another image.")
                continue
            if name in REFERENCE_IMAGES:
                continue  # one of another aspect ratio keeps it
            if abs(width_px * prompt.height_px / (height_px * prompt.width_px) - 1) > ASPECT_TOLERANCE:
                yield Problem(
                    path,
                    f"The {label} of sample {index + 1} is stretched from {width_px} × {height_px} to "
                    f"{prompt.width_px} × {prompt.height_px} px.",
                    "warning",
                    "Give the sample the aspect ratio of its image.",
                )


def _image_fields(config: Config, prompt: SamplePrompt) -> tuple[str, ...]:
    """Return the names of the fields whose images a sample uses."""
    if reads_depth(config):
        return ("depth_image",)
    if reads_references(config):
        return REFERENCE_IMAGES
    return ("base_image", "mask_image") if inpaints(config) and prompt.inpainting else ()
