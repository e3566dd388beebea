"""The kinds of files, one line each, in the order of detection."""

from __future__ import annotations

from collections.abc import Mapping

from modules.families.kinds.checkpoint import CHECKPOINT
from modules.families.kinds.embedding import EMBEDDING
from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.folder import DIFFUSERS_FOLDER
from modules.families.kinds.lora import LORA
from modules.families.kinds.other_files import BROKEN, OTHER_MODEL, PART, UNKNOWN
from modules.families.kinds.record import FileKindSpec, ModelType, Use
from modules.families.kinds.vae import VAE

# The order matters: an adapter's names contain the names of its model, which contain the names of its parts.
FILE_KINDS: Mapping[str, FileKindSpec] = {
    LORA.name: LORA,
    CHECKPOINT.name: CHECKPOINT,
    OTHER_MODEL.name: OTHER_MODEL,
    VAE.name: VAE,
    EMBEDDING.name: EMBEDDING,
    PART.name: PART,
    DIFFUSERS_FOLDER.name: DIFFUSERS_FOLDER,
    UNKNOWN.name: UNKNOWN,
    BROKEN.name: BROKEN,
}


def serves_as(kind: FileKind, use: Use) -> bool:
    """Return whether a run can use a file as its base model, its VAE or the start of its adapter."""
    return use in FILE_KINDS[kind.kind].uses


def kept_as(kind: FileKind) -> ModelType | None:
    """Return the kind of folder in which programs keep a file; None for a folder, and for a file that none keeps."""
    return "diffusion_models" if kind.is_denoiser else FILE_KINDS[kind.kind].kept_as
