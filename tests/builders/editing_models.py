"""The tiny editing models, one line each: the matrices of checkpointing, freezing and devices run on them, too.

Each is a variant of a model in `FLOW_MODELS`, trained with reference images. Their rows are a pairwise cover, all of
the full suite. `tests/conftest.py` makes a fixture of each name, whose folder has that name.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.config.codec import encode
from modules.config.schema import Config
from modules.data.image_settings import CONDITIONING_FOLDERS
from modules.system.factories import load_factory
from tests.builders.configs import laid_over
from tests.builders.flow_models import trained_parts_of


@dataclass(frozen=True, slots=True)
class EditingModel:
    """A tiny editing model: the name of the model whose variant it is, and how its folder is written."""

    of: str
    write: str
    options: Mapping[str, Any] = field(default_factory=dict)
    variant: str = "edit"


EDITING_MODELS: Mapping[str, EditingModel] = {
    "tiny_flux_kontext": EditingModel("tiny_flux", "tests.builders.flux:write_flux_folder", {"edits": True}),
    "tiny_flux2_edit": EditingModel("tiny_flux2_klein", "tests.builders.flux2_klein:write_flux2_klein_folder"),
    "tiny_flux3_edit": EditingModel("tiny_flux3", "tests.builders.flux3:write_flux3_folder"),
    "tiny_qwen_edit": EditingModel("tiny_qwen_image", "tests.builders.qwen_image:write_qwen_edit_folder"),
    "tiny_qwen_edit_2511": EditingModel(
        "tiny_qwen_image", "tests.builders.qwen_image:write_qwen_edit_folder", {"zero_cond_t": True}
    ),
    "tiny_qwen_edit_one": EditingModel(
        "tiny_qwen_image", "tests.builders.qwen_image:write_qwen_edit_folder", {"is_plus": False}, "edit_one"
    ),
}


def write_editing_model(name: str, folder: Path) -> Path:
    """Write the model of a name."""
    model = EDITING_MODELS[name]
    written: Path = load_factory(model.write)(folder, **model.options)
    return written


def variant_of(folder: Path) -> str:
    """Return the variant of the model in a folder; empty if it is none of these."""
    model = EDITING_MODELS.get(folder.name)
    return model.variant if model else ""


def parts_trained_in(name: str) -> tuple[str, ...]:
    """Return the names of the parts of an editing model that may learn in the shared runs."""
    return trained_parts_of(EDITING_MODELS[name].of)


def with_references(config: Config) -> Config:
    """Return the config of a run with references, if its model is an editing one; the same for any other.

    Each image has a copy of itself as its references, in a folder next to its own, and samples have the first image of
    the first concept.
    """
    variant = variant_of(Path(config.model.base_model))
    if not variant:
        return config
    edited = laid_over(config, {"model": {"variant": variant}})
    tree, folders = encode(edited), CONDITIONING_FOLDERS[: 2 if variant == "edit" else 1]
    concepts = [
        {**given, "image": {**given.get("image", {}), **dict.fromkeys(folders, _copied(Path(given["path"])))}}
        for given in tree["concepts"]
    ]
    first = str(next(Path(concepts[0]["path"]).glob("*.png")))
    prompts = [{**given, "reference_image": first} for given in tree["sampling"]["prompts"]]
    return laid_over(edited, {"concepts": concepts, "sampling": {"prompts": prompts}})


def _copied(images: Path) -> str:
    folder = images.with_name(f"{images.name}-before")
    folder.mkdir(exist_ok=True)
    for image in images.glob("*.png"):
        shutil.copy(image, folder)
    return str(folder)
