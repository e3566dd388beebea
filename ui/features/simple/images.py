"""The images and captions of concepts: how many there are, one caption for all, and a prompt from a caption."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.data.concept import Concept
from modules.data.hub import HUB_SCHEME
from modules.settings.edit import get_path, replace_value
from modules.settings.shared_types import side_of
from modules.system.paths import as_config_path, from_root

_MAX_BELOW = 1000  # images in unused subfolders, and folders in which they are looked for: it may be a whole disk
_NOT_IN_NAMES = re.compile(r"\W+")


@dataclass(frozen=True, slots=True)
class CountedImages:
    """How many images a folder has, how many of them a caption, how many a reference image, and the first caption.

    `in_subfolders` are images in subfolders that the concept does not use; with `is_part` there may be more of them.
    They are not counted where it or another one has its masks, references or images in a subfolder: with subfolders,
    these would be trained, too. `missing` are the concepts whose folder is not there, or cannot be listed.
    """

    images: int = 0
    captions: int = 0
    references: int = 0
    caption: str = ""
    in_subfolders: int = 0
    is_part: bool = False
    missing: tuple[str, ...] = ()


def in_all(counted: Sequence[CountedImages]) -> CountedImages:
    """Return the numbers of several folders together, and their first caption."""
    return CountedImages(
        sum(c.images for c in counted),
        sum(c.captions for c in counted),
        sum(c.references for c in counted),
        next((c.caption for c in counted if c.caption), ""),
        sum(c.in_subfolders for c in counted),
        any(c.is_part for c in counted),
        tuple(name for c in counted for name in c.missing),
    )


def count_images(
    concept: Concept, others: Iterable[Concept] = (), *, check: Callable[[], None] = lambda: None
) -> CountedImages:
    """Return the numbers of a folder, in which other concepts may have theirs. For a background thread.

    Left out are images in archives, excluded ones, and a folder that cannot be listed. Captions that are not in a file
    next to each image count as present. `check` is called often, and may raise to stop.
    """
    from modules.data.archives import archive_of
    from modules.data.captions.sources import read_captions
    from modules.data.companions import find_references
    from modules.data.listing import list_images
    from modules.data.scan import name_within

    def is_there(file: Path) -> bool:
        check()
        return file.is_file()

    folder, excluded = from_root(concept.path), concept.excluded_names
    uses_all = concept.include_subfolders or folder.is_file()
    try:
        listed = list_images(folder, include_subfolders=uses_all, check=check).images
    except OSError:
        return CountedImages(missing=() if concept.path.strip().startswith(HUB_SCHEME) else (concept.label,))
    images = [image for image in listed if archive_of(image) is None and name_within(folder, image) not in excluded]
    below, is_part = 0, False
    if not uses_all and bool(images) == bool(listed) and not _has_other_use(concept, others):  # or all are in archives
        below, is_part = _count_below(folder, excluded, check)
    captioned = images
    if concept.caption_source == "text_file" and not concept.default_caption.strip():
        captioned = [image for image in images if is_there(image.with_suffix(concept.caption_extension))]
    texts = read_captions(captioned[0], concept.caption_origin).texts if captioned else ()
    edited = images
    if not concept.image.conditioning_columns.strip():  # which name files of any name
        places = concept.image.conditioning_folders
        edited = []
        for image in images:
            check()
            if find_references(image, folder=folder, inputs_folders=places):
                edited.append(image)
    return CountedImages(len(images), len(captioned), len(edited), next(iter(texts), ""), below, is_part)


class _EnoughError(Exception):
    """Stops a search after many folders."""


def _count_below(folder: Path, excluded: Collection[str], check: Callable[[], None]) -> tuple[int, bool]:
    """Return how many images were found in the subfolders of a folder, and whether there may be more."""
    from modules.data.inputs import companion_suffixes
    from modules.data.listing import SUFFIXES, is_left_out, walk
    from modules.data.scan import name_within

    found, steps, companions = 0, 0, companion_suffixes()

    def count_steps() -> None:
        nonlocal steps
        check()
        steps += 1
        if steps > 2 * _MAX_BELOW:  # into a folder, and out of it
            raise _EnoughError

    try:
        for file in walk(folder, include_subfolders=True, skipped=[], check=count_steps):
            is_image = file.suffix.lower() in SUFFIXES and not is_left_out(file.parent, file.name, companions, [])
            found += is_image and file.parent != folder and name_within(folder, file) not in excluded
            if found == _MAX_BELOW:
                return found, True
    except _EnoughError:
        return found, found > 0
    return found, False


def _has_other_use(concept: Concept, others: Iterable[Concept]) -> bool:
    """Return whether a subfolder is used for masks, for reference images, or by another concept."""
    folder = from_root(concept.path)
    masks, references = concept.image.masks_folder.strip(), concept.image.conditioning_folders
    places = [*(from_root(other.path) for other in others), *([from_root(masks)] if masks else []), *references]
    return any(place is not None and folder in place.parents for place in places)


def samples_per_epoch(concepts: Iterable[Concept], counted: Iterable[CountedImages]) -> float:
    """Return how many samples an epoch has of concepts with so many images."""
    pairs = zip(concepts, counted, strict=False)
    return sum(c.samples_per_epoch if c.balancing == "samples" else c.repeats * found.images for c, found in pairs)


def with_folders(config: Config, folders: Sequence[Path], *, example: Config | None = None) -> Config:
    """Return the config with a concept for each folder, and without what is still as in an `example`.

    Who adds images to the demo trains these alone, into a file and a workspace of their own.
    """
    if example is not None:
        config = _without_example(config, example, name=folders[0].name)
    new = tuple(Concept(path=as_config_path(folder)) for folder in folders)
    return replace_value(config, "concepts", (*config.concepts, *new))


def _without_example(config: Config, example: Config, *, name: str) -> Config:
    """Return the config without the images and prompts of an example; the result gets the name of the images."""
    for path in ("concepts", "sampling.prompts"):
        of_example = get_path(example, path)
        config = replace_value(config, path, tuple(v for v in get_path(config, path) if v not in of_example))
    named = result_named(example.output.destination, name)
    new = {path: get_path(Config(), path) for path in ("general.notes", "general.workspace_dir", "validation")}
    for path, value in (*new.items(), ("output.destination", named)):
        if get_path(config, path) == get_path(example, path):
            config = replace_value(config, path, value)
    return config


def result_named(destination: str, name: str) -> str:
    """Return the destination of a LoRA that gets the name of a folder."""
    named = PurePath(destination).with_name(f"{_NOT_IN_NAMES.sub('-', name).strip('-') or 'lora'}.safetensors")
    return named.as_posix()


def with_subfolders(config: Config, changed: Collection[Concept]) -> Config:
    """Return the config in which some concepts also use the images in their subfolders."""
    concepts = (replace_value(c, "include_subfolders", True) if c in changed else c for c in config.concepts)
    return replace_value(config, "concepts", tuple(concepts))


def with_references(config: Config, changed: Collection[Concept], folder: Path) -> Config:
    """Return the config with the folder of reference images for some concepts."""
    path = as_config_path(folder)
    concepts = (replace_value(c, "image.conditioning_folder", path) if c in changed else c for c in config.concepts)
    return replace_value(config, "concepts", tuple(concepts))


def with_one_sentence(
    config: Config, changed: Collection[Concept], text: str, *, default_name: str = ""
) -> tuple[Config, str]:
    """Return the config with one caption for all images of some concepts, and the caption.

    A single word becomes "a photo of" it, the trigger word of the result if there is none, and its name if the
    destination is still `default_name`. Without a sample prompt the caption is the first one.
    """
    word = text.strip()
    is_word = len(word.split()) == 1
    caption = f"a photo of {word}" if is_word else word
    concepts = [
        c.model_copy(update={"caption_source": "fixed_text", "fixed_caption": caption}) if c in changed else c
        for c in config.concepts
    ]
    config = replace_value(config, "concepts", tuple(concepts))
    if is_word and not config.output.trigger_words.strip():
        config = replace_value(config, "output.trigger_words", word)
    if is_word and config.output.destination == default_name and (name := _NOT_IN_NAMES.sub("", word)):
        named = PurePath(default_name).with_name(f"{name}{PurePath(default_name).suffix}").as_posix()
        config = replace_value(config, "output.destination", named)
    return config if config.sampling.prompts else with_prompt(config, caption), caption


def with_prompt(config: Config, text: str) -> Config:
    """Return the config with a sample prompt at the training resolution, and the guidance of the family."""
    side_px = side_of(config.data.resolution_px[0]) // 8 * 8
    guidance = config.family.sample_guidance
    prompt = SamplePrompt(prompt=text, width_px=side_px, height_px=side_px, guidance=guidance)
    return replace_value(config, "sampling.prompts", (*config.sampling.prompts, prompt))
