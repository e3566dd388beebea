"""Control images in other trainers' datasets: the reference images of editing models here.

Sources: the documentation of musubi-tuner's dataset configs (Apache-2.0), and the settings that ai-toolkit's window
writes (MIT).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modules.config.imports.kohya_values import Args, flag_of, is_set, pop_first, sides_of
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.config.sections.evaluation import REFERENCE_IMAGES
from modules.data.image_settings import CONDITIONING_FOLDERS
from modules.families.registry import FAMILIES, files_of
from modules.system.problem import Problem, quote
from modules.system.regular_files import json_object_in, read_regular

_MAX_BYTES = 100_000_000
_MAX_ROWS = 200_000
# musubi-tuner's keys for the size of control images, first the present name of each.
_SIZES = ("control_resolution", "qwen_image_edit_control_resolution")
_KEPT_SIZES = ("no_resize_control", "qwen_image_edit_no_resize_control", "flux_kontext_no_resize_control")
CONTROL_KEYS = ("control_directory", *_SIZES, *_KEPT_SIZES)
"""The keys of musubi-tuner's datasets that are read here."""
_SIZE_OF_PIPELINES = (1024, 1024)


def ai_toolkit_folders(given: Args, notes: Notes) -> dict[str, str]:
    """Return the conditioning folders of a dataset of ai-toolkit, whose keys are popped.

    `control_path` is a folder or a list of folders; numbered keys take precedence over it.
    """
    single = given.pop("control_path", None)
    numbered = [pop_first(given, f"control_path_{number}") for number in (1, 2, 3)]
    listed = [folder for folder in numbered if is_set(folder)]
    if not listed:
        listed = [folder for folder in (single if isinstance(single, list) else [single]) if is_set(folder)]
    return _folders([str(folder) for folder in listed], notes)


def ai_toolkit_samples(item: Args) -> dict[str, str]:
    """Return the reference images of a sample of ai-toolkit, whose keys are popped."""
    single = pop_first(item, "ctrl_img")
    numbered = [value for number in (1, 2, 3) if is_set(value := pop_first(item, f"ctrl_img_{number}"))]
    files = numbered or ([single] if is_set(single) else [])
    return {name: str(file) for name, file in zip(REFERENCE_IMAGES, files, strict=False)}


def musubi_folders(given: Args, notes: Notes) -> dict[str, str]:
    """Return the conditioning folder of a dataset of musubi-tuner with a `control_directory`."""
    folder = given.get("control_directory")
    return _folders([str(folder)] if is_set(folder) else [], notes)


def musubi_sizes(given: Args, result: Tree, notes: Notes) -> None:
    """Give reference images the size of the model's pipeline where datasets of musubi-tuner have a size for them.

    A `control_resolution` of 1024 x 1024 does that there; another one, and `no_resize_control`, are reported.
    """
    datasets = given.get("datasets")
    for source in (given.get("general"), *(datasets if isinstance(datasets, list) else [])):
        if not isinstance(source, dict):
            continue
        sized = next((key for key in _SIZES if is_set(source.get(key))), "")
        kept = next((key for key in _KEPT_SIZES if flag_of(source.get(key, False))), "")
        for key in filter(None, (sized, kept)):
            put(result, "data.reference_size", "pipeline")
            if key == kept or sides_of(source[key]) != _SIZE_OF_PIPELINES:
                message = f"{key} = {quote(source[key])} became the size of references in the model's pipeline."
                notes.append(Problem("data.reference_size", message, "info"))


def concept_of_rows(file: str, notes: Notes) -> dict[str, Any] | None:
    """Return the concept of a JSONL file of musubi-tuner (`image_jsonl_file`); None if it cannot be read.

    Its rows name an image (`image_path`), and may name control images (`control_path`, or `control_path_0` and so on).
    The concept's folder is the one that contains all images; the columns may lead into the folders of control images.
    """
    rows = _rows(Path(file))
    images = [str(row["image_path"]) for row in rows if is_set(row.get("image_path"))]
    if not images:
        message = f"{quote(file)} cannot be read or names no images (image_path). It became no concept."
        notes.append(Problem("concepts", message, "warning"))
        return None
    folder = Path(file).parent / _common_folder(images)
    columns = sorted(
        {key for row in rows for key in row if key == "control_path" or key.startswith("control_path_")},
        key=lambda key: (len(key), key),
    )
    if len(columns) > len(CONDITIONING_FOLDERS):
        notes.append(Problem("concepts", f"Of {len(columns)} control images of a row, three are used.", "warning"))
    columns = columns[: len(CONDITIONING_FOLDERS)]
    image: dict[str, str] = {"conditioning_columns": ", ".join(columns)} if columns else {}
    for name, column in zip(CONDITIONING_FOLDERS, columns, strict=False):
        paths = [str(row[column]) for row in rows if is_set(row.get(column))]
        if paths and all(Path(path).is_absolute() for path in paths):
            image[name] = _common_folder(paths)
    concept: dict[str, Any] = {"name": Path(file).stem, "path": str(folder), "include_subfolders": True}
    concept |= {"caption_source": "metadata", "metadata_file": file}
    return concept | ({"image": image} if image else {})


def set_variant(concepts: Sequence[dict[str, Any]], result: Tree, notes: Notes) -> None:
    """Make the model an editing model where a concept has reference images."""
    images = [concept.get("image", {}) for concept in concepts]
    if not any(image.get(name) for image in images for name in ("conditioning_columns", *CONDITIONING_FOLDERS)):
        return
    model = result.get("model", {})
    if "variant" not in model:
        family = model.get("family", {}).get("name", "")
        named = files_of(family).variant_named(str(model.get("base_model", ""))) if family in FAMILIES else ""
        put(result, "model.variant", named or "edit")
    if result.get("data", {}).get("reference_size") == "pipeline":
        return
    message = "Control images became reference images, at the size of their image or its number of pixels."
    advice = 'Set the reference size to "As in the pipeline" where they had their own size.'
    notes.append(Problem("data.reference_size", message, "info", advice))


def _folders(folders: Sequence[str], notes: Notes) -> dict[str, str]:
    if len(folders) > len(CONDITIONING_FOLDERS):
        notes.append(Problem("concepts", f"Of {len(folders)} folders of control images, three are used.", "warning"))
    return dict(zip(CONDITIONING_FOLDERS, folders, strict=False))


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        lines = read_regular(file, _MAX_BYTES).decode("utf-8", errors="replace").split("\n")[:_MAX_ROWS]
    except (OSError, ValueError):
        return []
    return [row for line in lines if (row := json_object_in(line)) is not None]


def _common_folder(paths: Sequence[str]) -> str:
    """Return the folder that contains all paths; "." if only some of them are absolute."""
    try:
        return os.path.commonpath([os.path.dirname(path.replace("\\", "/")) for path in paths]) or "."  # noqa: PTH120
    except ValueError:
        return "."
