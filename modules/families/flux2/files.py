"""The files of FLUX.2 dev: folders, the names of layers in LoRA files, and files of the transformer alone."""

from __future__ import annotations

from dataclasses import replace

from modules.families.kinds.file_kind import FileKind
from modules.families.parts.flux2.files import NAMING_ROWS, SINGLE_FILE, TRANSFORMER_FILE, transformer_targets
from modules.families.parts.single_file.detect import denoiser_kind
from modules.families.parts.single_file.transformer_file import files_of_one_model
from modules.families.published import PublishedModel
from modules.formats.checkpoint_header import CheckpointHeader

MODEL = PublishedModel(
    name="flux2_dev",
    label="FLUX.2 dev",
    family="flux2",
    architecture="flux-2-dev",
    implementation="https://github.com/black-forest-labs/flux2",
    adapter_targets=transformer_targets,
    repository="black-forest-labs/FLUX.2-dev",
    pipelines={"": "Flux2Pipeline"},
    single_file=SINGLE_FILE,
    naming_rows=NAMING_ROWS,
)


def _checkpoint(header: CheckpointHeader) -> FileKind | None:
    """Return the file's kind; klein's transformer has all other names, but reads no guidance scale."""
    if not any(".guidance_" in f".{name}" for name in header.shapes):
        return None
    return denoiser_kind(header, MODEL, "transformer", TRANSFORMER_FILE, "flow")


FILES = replace(files_of_one_model(MODEL, TRANSFORMER_FILE, "flux2", "flux-2", "flux_2"), checkpoint=_checkpoint)
