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

_PREFIXES = (DENOISER_PREFIX, "diffusion_model.", "net.", "ema_state_dict.", "")
_OTHER_PARTS = ("vae.", "first_stage_model.", "text_encoders.", "cond_stage_model.", "conditioner.")


def prefixed_names(names: Iterable[str], mark: str, prefix: str = DENOISER_PREFIX) -> dict[str, str]:
    """Return the names of a file's tensors; the denoiser's have one prefix: `{prefixed: name there}`.

    `mark` is the beginning of a name that every denoiser of the model has, without a prefix.
    """
    names = list(names)
    theirs = next((p for p in _PREFIXES if any(n.startswith(f"{p}{mark}") for n in names)), prefix)
    return {_add_prefix(name, theirs, prefix): name for name in names}


def denoiser_kind(
    header: CheckpointHeader, model: PublishedModel, label: str, file: DenoiserFile, prediction: Prediction
) -> FileKind | None:
    """Return the file's kind if it contains the denoiser of a model; `label` is the denoiser's in a sentence."""
    if not file.is_in(header.shapes):
        return None
    is_alone = not header.has(*_OTHER_PARTS)
    facts = {"container": header.container, "dtype": header.main_dtype, "tensors": str(len(header.shapes))}
    if also := [part for part, inner in file.inside.items() if inner.is_in(header.shapes)]:
        facts["also"] = ", ".join(also)
    if header.scales.names:
        facts["scaled"] = "a scale for each matrix"
    stored = "scaled float8" if "scaled" in facts else facts["dtype"]
    dtype = f", {stored}" if stored else ""
    what = f"{with_article(model.label, capital=True)} {label}"
    sentence = f"{what} alone{dtype}." if is_alone else f"{what} with other parts, which are not read{dtype}."
    return FileKind("part", sentence, model.family, model.name, prediction=prediction, facts=facts)


def _add_prefix(name: str, theirs: str, prefix: str) -> str:
    is_other = not name.startswith(theirs) or (not theirs and name.startswith(_OTHER_PARTS))
    return name if is_other else f"{prefix}{name.removeprefix(theirs)}"
