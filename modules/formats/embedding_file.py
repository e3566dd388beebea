"""The files of embeddings (textual inversion) of A1111, ComfyUI, Forge, diffusers, kohya and OneTrainer.

A1111's .pt has the vectors in `string_to_param`; other files of one text encoder have a single tensor of any name;
SDXL's have one for each encoder, `clip_l` and `clip_g`. Our files with a single tensor use OneTrainer's name for it,
`emp_params`: OneTrainer reads only this one, and the other programs read any.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from modules.formats.adapter_names import EMB_PARAMS, EMP_PARAMS, OUTPUT_SUFFIX
from modules.formats.lazy_tensors import LazyTensor
from modules.formats.stored_tensors import read_stored
from modules.system.errors import DarkroomError

_OF_ONE_ENCODER = (EMP_PARAMS, EMB_PARAMS, "string_to_param.*")
_ADVICE = "Choose an embedding for the base model, or leave the file empty for a new one."


def read_embedding(path: Path, tensors: Mapping[str, str], widths: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Return an embedding's vectors (N, D) by text encoder, in float32; at the output by encoder and `OUTPUT_SUFFIX`.

    `tensors` are the names of the family's tensors by text encoder, `widths` the encoders' D. A file with a single
    tensor is for the encoder of its width; the others get no vectors. Raises DarkroomError if the file cannot be read
    or does not fit the encoders.
    """
    stored, _ = read_stored(path)
    by_part: dict[str, LazyTensor] = {}
    for part, name in tensors.items():
        names = _OF_ONE_ENCODER if len(tensors) == 1 else (name,)
        for suffix in ("", OUTPUT_SUFFIX):
            tensor = next((stored[n + suffix] for n in names if n + suffix in stored), None)
            if tensor is not None:
                by_part[part + suffix] = tensor
    vectors = {n: t for n, t in stored.items() if len(t.shape) in (1, 2)}
    if not by_part and len(vectors) == 1:
        (only,) = vectors.values()
        by_part = {part: only for part in tensors if widths[part] == only.shape[-1]}
    if not by_part:
        shapes = ", ".join(f"{n} {tuple(t.shape)}" for n, t in list(stored.items())[:3])
        raise DarkroomError(f"{path.name} has no vectors for this model: it contains {shapes}.", advice=_ADVICE)
    return {
        name: _check_vectors(path, tensor, widths[name.removesuffix(OUTPUT_SUFFIX)]) for name, tensor in by_part.items()
    }


def _check_vectors(path: Path, stored: LazyTensor, width: int) -> torch.Tensor:
    vectors = torch.atleast_2d(stored.make().float())
    if vectors.dim() != 2 or not len(vectors) or vectors.shape[1] != width:
        raise DarkroomError(
            f"{path.name} has vectors of the shape {tuple(stored.shape)}; the text encoder needs a width of {width}.",
            advice=_ADVICE,
        )
    if not bool(vectors.isfinite().all()):
        raise DarkroomError(f"{path.name} contains NaN or infinite values.", advice="Choose another file.")
    copied: torch.Tensor = vectors.clone()
    return copied
