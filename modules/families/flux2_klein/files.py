"""The files of FLUX.2 klein: folders, the names of layers in LoRA files, and files of the transformer alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.families.kinds.file_kind import FileKind
from modules.families.parts.flux2.files import NAMING_ROWS, SINGLE_FILE, TRANSFORMER_FILE, transformer_targets
from modules.families.parts.linear_layers import width_of
from modules.families.parts.single_file.detect import denoiser_kind
from modules.families.published import FamilyFiles, PublishedModel
from modules.formats.checkpoint_header import CheckpointHeader

_WIDTH_OF_9B = 4096


def _model(name: str, size: str) -> PublishedModel:
    return PublishedModel(
        name=name,
        label=f"FLUX.2 klein {size}",
        family="flux2_klein",
        architecture=f"flux-2-klein-{size.lower()}",
        kohya_version=f"flux2_klein_{size.lower()}",
        implementation="https://github.com/black-forest-labs/flux2",
        adapter_targets=transformer_targets,
        repository=f"black-forest-labs/FLUX.2-klein-base-{size}",
        pipelines={"": "Flux2KleinPipeline"},
        index={"is_distilled": False},
        single_file=SINGLE_FILE,
        naming_rows=NAMING_ROWS,
    )


_4B, _9B = _model("klein_4b", "4B"), _model("klein_9b", "9B")


def published_name(config: Mapping[str, Any]) -> str:
    """Return the published model that matches a transformer's config, by its width."""
    return _model_of_width(width_of(config)).name


def _model_of_width(width: int) -> PublishedModel:
    return _9B if width >= _WIDTH_OF_9B else _4B


def _checkpoint(header: CheckpointHeader) -> FileKind | None:
    """Return the file's kind; FLUX.2 dev's transformer reads a guidance scale, klein's does not."""
    if any(".guidance_" in f".{name}" for name in header.shapes):
        return None
    modulations = (shape for name, shape in header.shapes.items() if ".single_stream_modulation.lin" in f".{name}")
    width = max((shape[-1] for shape in modulations if shape), default=0)
    return denoiser_kind(header, _model_of_width(width), "transformer", TRANSFORMER_FILE, "flow")


FILES = FamilyFiles(
    models=(_4B, _9B),
    pipelines={"Flux2KleinPipeline": ""},
    folder_model=lambda facts: published_name(facts.denoiser),
    checkpoint=_checkpoint,
    denoiser_file=TRANSFORMER_FILE,
    lora_words=(("klein-9b", _9B.name), ("klein_9b", _9B.name), ("klein-base-9b", _9B.name), ("klein", _4B.name)),
    repository_model=lambda name: _9B.name if "9b" in name.lower() else _4B.name,
)
