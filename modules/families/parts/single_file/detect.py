"""Detects files with the denoiser of a model alone, by the names of its tensors, and adds the prefix that ComfyUI
gives them.
"""

from __future__ import annotations

from collections.abc import Iterable

from modules.families.kinds.file_kind import FileKind, Prediction
from modules.families.parts.single_file.record import DenoiserFile
from modules.families.published import PublishedModel
from modules.formats.checkpoint_header import CheckpointHeader
from modules.system.problem import with_article

DENOISER_PREFIX = "model.diffusion_model."
"""The prefixes of a denoiser's tensors in the files of ComfyUI and LDM."""

_PREFIXES = (DENOISER_PREFIX, "diffusion_model.", "")
_OTHER_PARTS = ("vae.", "first_stage_model.", "text_encoders.", "cond_stage_model.", "conditioner.")


def prefixed_names(names: Iterable[str], mark: str) -> dict[str, str]:
    """Return the names of a file's tensors; the denoiser's have ComfyUI's prefix: `{prefixed: name there}`.

    `mark` is the beginning of a name that every denoiser of the model has, without a prefix.
    """
    names = list(names)
    prefix = next((p for p in _PREFIXES if any(n.startswith(f"{p}{mark}") for n in names)), DENOISER_PREFIX)
    return {_prefixed(name, prefix): name for name in names}


def denoiser_kind(
    header: CheckpointHeader, model: PublishedModel, label: str, file: DenoiserFile, prediction: Prediction
) -> FileKind | None:
    """Return the file's kind if it contains the denoiser of a model; `label` is the denoiser's in a sentence."""
    if not file.is_in(header.shapes):
        return None
    is_alone = not header.has(*_OTHER_PARTS)
    facts = {"container": header.container, "dtype": header.main_dtype, "tensors": str(len(header.shapes))}
    if header.scales.names:
        facts["scaled"] = "a scale for each matrix"
    stored = "scaled float8" if "scaled" in facts else facts["dtype"]
    dtype = f", {stored}" if stored else ""
    what = f"{with_article(model.label, capital=True)} {label}"
    sentence = f"{what} alone{dtype}." if is_alone else f"{what} with other parts, which are not read{dtype}."
    return FileKind("part", sentence, model.family, model.name, prediction=prediction, facts=facts)


def _prefixed(name: str, prefix: str) -> str:
    is_other = not name.startswith(prefix) or (not prefix and name.startswith(_OTHER_PARTS))
    return name if is_other else f"{DENOISER_PREFIX}{name.removeprefix(prefix)}"
