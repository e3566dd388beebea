"""A model's single file in scaled float8, as ComfyUI reads it.

The matrices of the denoiser are in float8 with a scale each; what is never quantized, norms and biases stay in float16
(`modules/formats/float8.py`). Only files with the denoiser alone are written so: the programs that read checkpoints
with all parts read plain float8.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from modules.families.parts.single_file.models import layouts
from modules.families.parts.single_file.record import Configs
from modules.families.registry import FAMILIES, files_of, published
from modules.formats.float8 import FLOAT8, in_scaled_float8, takes_float8
from modules.formats.float8_scales import mark_of_scales
from modules.formats.lazy_tensors import LazyTensor, lazy
from modules.system.errors import DarkroomError


def require_scalable(model: str) -> None:
    """Raise DarkroomError if files of a published model are not written in scaled float8."""
    family = published(model).family
    if not files_of(family).has_denoiser_alone:
        raise DarkroomError(
            "Scaled float8 is for single files with a transformer alone; those of "
            f"{published(model).label} contain all parts.",
            advice="Choose float16 or bfloat16.",
        )


def to_scaled_float8(model: str, configs: Configs, tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return the tensors of a model's single file, by their names there, in scaled float8.

    A matrix with the weights of several layers has one scale. ComfyUI computes with it in 16 bits where the activations
    of a model are too large for float8, as those of Z-Image's MLPs are. Raises DarkroomError as `require_scalable`.
    """
    require_scalable(model)
    part = FAMILIES[published(model).family].denoiser
    layout = layouts(model, configs)[part.name]
    matrices: dict[str, bool] = {}
    for slot in layout.slots:
        name = f"{layout.prefix}{slot.original}"
        shape = tensors[name].shape
        takes = len(shape) == 2 and takes_float8(slot.key, shape, part.model.never_quantized)
        matrices[name] = matrices.get(name, True) and takes
    mark, num_values = mark_of_scales(layout.prefix, exact_products=part.model.overflows_in_float16)
    written = in_scaled_float8(tensors, {name for name, takes in matrices.items() if takes})
    return {**written, mark: lazy(torch.zeros(num_values).to(FLOAT8))}
