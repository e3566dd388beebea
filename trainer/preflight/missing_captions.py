"""Captions that cannot be found: files and columns that do not exist, and images without a caption."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from modules.config.schema import Config
from modules.data.concept import Concept
from modules.data.dataset import Dataset
from modules.data.example import CONDITIONING_COLUMNS
from modules.data.listing import SkippedEntry, is_metadata
from modules.data.scan import fault_of_caption
from modules.data.source_image import SourceImage
from modules.data.tables import ROW_SUFFIX
from modules.system.paths import from_root
from modules.system.problem import Problem, count, quote, shorten
from trainer.preflight.images import label_of
from trainer.preflight.model_files import kind_of

_MAX_CHARS = 200
_ADVICE = {
    "caption_columns": "Choose from these columns in Caption columns, or choose another metadata file.",
    "metadata_file": "Correct the file, or choose another one.",
    CONDITIONING_COLUMNS: "Choose from these columns for the reference images.",
}


def problems_of_captions_files(config: Config) -> Iterator[Problem]:
    """Yield the enabled concepts whose file with the captions of all images is not chosen or does not exist."""
    for index, concept in enumerate(config.concepts):
        if not concept.enabled or concept.caption_source != "one_file" or not concept.has_images:
            continue
        given, label = concept.captions_file.strip(), label_of(config, index)
        if given and kind_of(from_root(given)) == "file":
            continue
        message = f"The captions file {shorten(given, max_chars=_MAX_CHARS)} of the concept {label} does not exist."
        if not given:
            message = f"The captions of the concept {label} are in one file, but none is chosen."
        advice = "Choose the file, or another source of captions."
        yield Problem(f"concepts.{index}.captions_file", message, advice=advice)


def problems_of_missing_captions(config: Config, training: Dataset, validation: Dataset) -> Iterator[Problem]:
    """Yield the metadata that lacks a column or cannot be read, and the training images without a caption."""
    yield from _wrong_metadata(config, _indices(config, "training"), training)
    yield from _wrong_metadata(config, _indices(config, "validation"), validation)
    yield from _without_captions(config, training)
    yield from _unused_metadata(config, training)


def _indices(config: Config, kind: str) -> list[int]:
    """Return the indices of the concepts of a dataset, by their number in it."""
    return [i for i, c in enumerate(config.concepts) if c.enabled and c.dataset_kind == kind]


def _wrong_metadata(config: Config, indices: Sequence[int], dataset: Dataset) -> Iterator[Problem]:
    """Yield each problem of metadata once for a concept: its shards or folders may have many files with the same."""
    same: dict[tuple[int, str, str], list[SkippedEntry]] = defaultdict(list)
    for number, fault in dataset.wrong_settings:
        same[number, fault.setting, fault.reason].append(fault)
    for (number, setting, reason), faults in same.items():
        index = indices[number]
        what = f" {reason}" if reason.startswith("has ") else f": {reason}"
        others = f" The same applies to {count(len(faults) - 1, 'other file')}." if len(faults) > 1 else ""
        label = label_of(config, index)
        where = f"{faults[0].path.name}{what}.{others}"
        message = f"The captions of the concept {label} cannot be read: {where}"
        if setting == CONDITIONING_COLUMNS:
            message = f"Reference images of the concept {label} are not used: {where}"
            yield Problem(f"concepts.{index}.{setting}", message, "warning", _ADVICE[setting])
        elif config.concepts[index].caption_source == "metadata" or not config.concepts[index].has_images:
            yield Problem(f"concepts.{index}.{setting}", message, advice=_ADVICE[setting])
        else:  # columns next to the images of a Parquet file, which are used although no setting names them
            advice = "To use one of its columns, set where captions are from to the metadata file and choose it."
            yield Problem(f"concepts.{index}.caption_source", message, "warning", advice)


def _without_captions(config: Config, training: Dataset) -> Iterator[Problem]:
    """Yield the number of images without a caption, by how they are trained and what to do about them.

    Those of a concept whose captions are reported as an error are left out.
    """
    indices = _indices(config, "training")
    reported = {number for number, fault in training.wrong_settings if fault.setting != CONDITIONING_COLUMNS}
    reported |= {n for n, i in enumerate(indices) if any(_is_of(i, p) for p in problems_of_captions_files(config))}
    by_way: dict[tuple[str, str, str], list[SourceImage]] = defaultdict(list)
    for example in training.examples:
        if not example.image.captions and example.concept not in reported:
            rules = training.concepts[example.concept].captions
            added = " ".join(filter(None, (rules.prefix, rules.trigger_word, rules.suffix)))
            way = (added, *_advice(config.concepts[indices[example.concept]], example.image))
            by_way[way].append(example.image)
    for (added, advice, remedy), images in by_way.items():
        message = "image has no caption and is" if len(images) == 1 else "images have no caption and are"
        instead = f"with {quote(added)} alone" if added else "without one"
        yield Problem(
            "concepts",
            f"{len(images):,} {message} trained {instead}; the first is {images[0].path.name}: "
            f"{fault_of_caption(images[0])}.",
            "info" if added else "warning",
            advice,
            remedy,
        )


def _is_of(index: int, problem: Problem) -> bool:
    return problem.path.startswith(f"concepts.{index}.")


def _advice(concept: Concept, image: SourceImage) -> tuple[str, str]:
    """Return where to write the caption of an image that has none, and the remedy: a captioner writes text files."""
    where = _where_to_write(concept, image)
    is_file = concept.caption_source == "text_file" and image.path.suffix != ROW_SUFFIX
    return where, "captions" if is_file else ""


def _where_to_write(concept: Concept, image: SourceImage) -> str:
    source = concept.caption_source
    if image.path.suffix == ROW_SUFFIX and source in ("text_file", "file_name"):
        return "Write the captions in a column next to the images, or choose another source of captions."
    match source:
        case "file_name":
            return "Rename the images: their names are their captions. Or choose another source of captions."
        case "one_file":
            file = shorten(concept.captions_file, max_chars=_MAX_CHARS)
            return f"Write the captions in {file}, one per line, or choose another source of captions."
        case "metadata":
            return "Add a row with a caption for each image to the metadata file, or choose another source of captions."
        case "fixed_text":
            return "Enter the fixed caption, or choose another source of captions."
        case _:
            return f"Add a {concept.caption_extension} file of the same name next to each image."


def _unused_metadata(config: Config, training: Dataset) -> Iterator[Problem]:
    """Yield the concepts with images without a caption whose folder has a metadata file that is not used."""
    indices = _indices(config, "training")
    for number in sorted({e.concept for e in training.examples if not e.image.captions}):
        index = indices[number]
        concept = config.concepts[index]
        files = sorted(p.name for p in from_root(concept.path).glob("metadata.*") if is_metadata(p))
        if files and concept.caption_source != "metadata" and not concept.holds_pairs:
            yield Problem(
                f"concepts.{index}.caption_source",
                f"The captions in {files[0]}, in the folder of the concept {label_of(config, index)}, are not used.",
                "warning",
                "To use them, set where captions are from to the metadata file.",
            )
