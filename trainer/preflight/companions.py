"""Files next to the images: masks and conditioning images, and captions with the placeholders of embeddings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from modules.config.schema import Config
from modules.config.usage import inpaints, inputs_of, learns_from, reads_depth, reads_references, weighs_areas
from modules.data.captions.sources import contains_any
from modules.data.companions import Companion, is_named_like_mask, mask_path_of
from modules.data.dataset import ConceptFacts, Dataset
from modules.data.example import Example
from modules.data.image_settings import CONDITIONING_FOLDERS
from modules.data.inputs import REFERENCES
from modules.data.listing import walk
from modules.data.references import ASPECT_TOLERANCE
from modules.families.spec import VARIANT_LABELS
from modules.system.paths import from_root
from modules.system.problem import Problem, agree, count, quote

_CONDITIONING, _DEPTH = "masked_image", "depth"  # inputs of the model


def problems_of_companions(config: Config, training: Dataset) -> Iterator[Problem]:
    """Yield missing or stretched masks and conditioning images, and embedding placeholders that no caption has."""
    yield from _masks(config, training)
    yield from _conditioning_images(config, training)
    yield from _depth_maps(config, training)
    yield from _references(config, training)
    yield from _words(config, training)


def _masks(config: Config, training: Dataset) -> Iterator[Problem]:
    is_used = weighs_areas(config) or inpaints(config)
    if not is_used or not training.examples or learns_from(config) == "prompts":
        return
    images = [e.image.path for e in training.examples]
    num_without = sum(e.mask is None for e in training.examples)
    if inpaints(config):
        if num_without:
            have = "has no mask and is" if num_without == 1 else "have no mask and are"
            message = f"{num_without:,} of {len(images):,} images {have} trained with random inpainting masks."
            yield Problem("model.variant", message, "info")
    elif num_without == len(images):
        yield Problem(
            "masks.enabled",
            f"Masked training is on, but {_none_of(len(images), 'image')} has a mask.",
            advice=f"Add a mask to each image, such as {images[0].stem}-masklabel.png, or switch off masked training.",
        )
    elif num_without:
        have = "has no mask and is" if num_without == 1 else "have no mask and are"
        message = f"{num_without:,} of {len(images):,} images {have} trained without one."
        yield Problem("masks.enabled", message, "info")
    yield from _shapes(training, [e.mask for e in training.examples], "mask", "masks.enabled")
    if unused := _unused_masks(config, training):
        one = "1 mask file belongs to no image of its folder"
        several = f"{len(unused):,} mask files belong to no image of their folder"
        yield Problem(
            "masks.enabled",
            f"{one if len(unused) == 1 else several}; the first is {unused[0].name}.",
            "warning",
            "Name the mask of cat.jpg cat-masklabel.png, and put it next to the image.",
        )


def _unused_masks(config: Config, training: Dataset) -> list[Path]:
    """Return the files next to images that are named like masks, but are not the mask of any image.

    Their image is missing, or they are not PNG files by their suffix.
    """
    used = [mask_path_of(s.path) for s in training.skipped]
    used += [e.mask.path for e in training.examples if e.mask is not None]
    files: set[Path] = set()
    for concept in config.concepts:
        is_trained = concept.enabled and concept.dataset_kind == "training"
        folder = from_root(concept.path)
        used += [mask_path_of(path) for name in concept.excluded_names if (path := folder / name).name]
        if is_trained and concept.image.mask_source == "file" and folder.is_dir():
            files.update(walk(folder, include_subfolders=concept.include_subfolders, skipped=[]))
    known = {str(path).lower() for path in used}  # some file systems do not distinguish .png and .PNG
    return sorted(p for p in files if is_named_like_mask(p) and str(p).lower() not in known)


def _none_of(number: int, thing: str) -> str:
    return f"not one {thing}" if number == 1 else f"none of the {number:,} {thing}s"


def _conditioning_images(config: Config, training: Dataset) -> Iterator[Problem]:
    """Yield how many images of an inpainting model have no conditioning image of their own."""
    if not inpaints(config) or not config.masks.custom_conditioning_image or not training.examples:
        return
    path, images = "masks.custom_conditioning_image", [e.image.path for e in training.examples]
    num_without = sum(_CONDITIONING not in e.input_files for e in training.examples)
    if num_without == len(images):
        yield Problem(
            path,
            f"The custom conditioning image is on, but {_none_of(len(images), 'image')} has one; each is trained with "
            "itself, without its masked area.",
            "warning",
            f"Add a conditioning image to each, such as {images[0].stem}-condlabel.png, or switch the setting off.",
        )
    elif num_without:
        several = "have no conditioning image and are trained with themselves, without their masked areas"
        one = "has no conditioning image and is trained with itself, without its masked area"
        message = f"{num_without:,} of {len(images):,} images {several if num_without > 1 else one}."
        yield Problem(path, message, "info")
    yield from _shapes(
        training, [e.input_files.get(_CONDITIONING) for e in training.examples], "conditioning image", path
    )


def _depth_maps(config: Config, training: Dataset) -> Iterator[Problem]:
    """Yield how many images of a depth model have no depth map: none is estimated."""
    if not reads_depth(config) or not training.examples:
        return
    images = [e.image.path for e in training.examples]
    missing = [e.image.path for e in training.examples if _DEPTH not in e.input_files]
    if missing:
        have = "has no depth map" if len(missing) == 1 else "have no depth map"
        yield Problem(
            "model.variant",
            f"{len(missing):,} of {len(images):,} images {have}; the first is {missing[0].name}. A depth model needs "
            "one with each image, and Darkroom does not estimate depth.",
            advice=f"Add a gray image, brighter where things are nearer, as {missing[0].stem}-condlabel.png.",
        )
    yield from _shapes(training, [e.input_files.get(_DEPTH) for e in training.examples], "depth map", "model.variant")


def _references(config: Config, training: Dataset) -> Iterator[Problem]:
    """Yield how many images of an editing model have no reference image, or fewer than others of their concept.

    Concepts without any are trained from their captions alone, unless no concept has one.
    """
    if not reads_references(config) or not training.examples:
        return
    images, counts = [e.image.path for e in training.examples], Counter(map(_num_references, training.examples))
    most = [max(map(_num_references, _examples_of(training, c)), default=0) for c in training.concepts]
    has_some = any(most)
    missing, num_fewer, lacking = list[Path](), 0, list[int]()
    numbers = [n for n, c in enumerate(config.concepts) if c.enabled and c.dataset_kind == "training"]
    for number, concept, most_of_concept in zip(numbers, training.concepts, most, strict=True):
        examples = _examples_of(training, concept)
        if most_of_concept or not has_some:
            without = [e.image.path for e in examples if not _num_references(e)]
            missing += without
            lacking += [number] if without else []
        num_fewer += sum(0 < _num_references(e) < most_of_concept for e in examples)
        if not most_of_concept and has_some and examples:
            message = f"The images of the concept {concept.name} have no reference images: the model learns from their "
            yield Problem("model.variant", f"{message}captions alone.", "info")
    if missing:
        have = agree(len(missing), "has")
        yield Problem(
            f"concepts.{lacking[0]}.image.conditioning_folder",
            f"{len(missing):,} of {len(images):,} images {have} no reference image; the first is {missing[0].name}. An "
            "editing model needs the image before the edit with each one.",
            advice="Choose the folder that has it under the same name as the concept's reference folder, or "
            f"save it as {missing[0].stem}-condlabel.png next to the image.",
        )
    yield from _unread_references(config)
    if num_fewer:
        have = agree(num_fewer, "has")
        which = ", ".join(f"{counts[n]:,} with {count(n, 'reference image')}" for n in sorted(counts) if n)
        message = f"{num_fewer:,} of {len(images):,} images {have} fewer reference images than others of their concept"
        yield Problem("model.variant", f"{message} ({which}). Batches hold images with equally many.", "info")


def _unread_references(config: Config) -> Iterator[Problem]:
    """Yield the concepts that name more folders of reference images than the model reads."""
    most = len(inputs_of(config))
    for index, concept in enumerate(config.concepts):
        folders = [name for name in CONDITIONING_FOLDERS if getattr(concept.image, name).strip()]
        if concept.enabled and len(folders) > most:
            yield Problem(
                f"concepts.{index}.image.{folders[most]}",
                f"The concept names {len(folders)} folders of reference images, of which the model reads {most}.",
                "warning",
                f"Empty the others, or set the variant to {VARIANT_LABELS['edit']} for a model that reads several.",
            )


def _examples_of(training: Dataset, concept: ConceptFacts) -> Sequence[Example]:
    return training.examples[concept.first_example : concept.first_example + concept.num_examples]


def _num_references(example: Example) -> int:
    return sum(name in example.input_files for name in REFERENCES)


def _shapes(training: Dataset, files: Sequence[Companion | None], name: str, setting: str) -> Iterator[Problem]:
    """Yield a warning about files that do not have the aspect ratio of their image: they are stretched to it."""
    odd = [
        f.path
        for e, f in zip(training.examples, files, strict=True)
        if f is not None and abs(f.size.aspect * e.image.height_px / e.image.width_px - 1) > ASPECT_TOLERANCE
    ]
    if odd:
        several = f"{name}s do not have the aspect ratio of their images and are"
        one = f"{name} does not have the aspect ratio of its image and is"
        yield Problem(
            setting,
            f"{len(odd):,} {several if len(odd) > 1 else one} stretched; the first is {odd[0].name}.",
            "warning",
            f"Create the {name}s at the size of their images.",
        )


def _words(config: Config, training: Dataset) -> Iterator[Problem]:
    if config.training.trains == "vae":
        return
    words = [w.placeholder.strip() for w in config.embeddings.words]
    if not words:
        return
    keys = [w.lower() for w in words]  # as the tokenizer reads them
    captions = {c for e in training.examples for c in training.texts(e, run_seed=config.general.seed) if c}
    for index, word in enumerate(words):
        path = f"embeddings.words.{index}.placeholder"
        if not word:
            yield Problem(path, "The embedding has no placeholder.", advice="Enter one, such as <my-word>.")
        elif keys[index] in keys[:index]:
            yield Problem(
                path,
                f"{quote(word)} is already the placeholder of embedding {keys.index(keys[index]) + 1}. Placeholders "
                "must be unique.",
                advice="Use a different placeholder for each embedding.",
            )
        elif captions and config.embeddings.words[index].train and not any(contains_any(c, [word]) for c in captions):
            yield Problem(
                path,
                f"{quote(word)} is to be trained, but {_none_of(len(captions), 'caption')} contains it.",
                advice="Add it to the captions of its images, or switch off its training.",
            )
