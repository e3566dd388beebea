"""Pretrained image encoders: reading them, and their input, differentiable and in torch alone: resize, crop or pad,
normalise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import nn
from torch.nn import functional
from transformers.utils.logging import disable_progress_bar

from modules.formats.lazy_tensors import LazyTensor
from modules.system.devices import tensor_on
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason


def read_pretrained(model_class: Any, folder: Path, label: str, *, keeps_dtype: bool = False) -> Any:
    """Return the model of a folder in transformers' layout, in float32, or, if it `keeps_dtype`, in the dtype of its
    config. Only weights are read, never code.

    Raises DarkroomError where the folder does not hold a `label`, or lacks weights.
    """
    disable_progress_bar()
    try:
        model, loading = model_class.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            dtype="auto" if keeps_dtype else torch.float32,
            trust_remote_code=False,
        )
    except (OSError, ValueError, RuntimeError, TypeError, SafetensorError) as error:
        raise DarkroomError(
            f"The {label} in {folder} cannot be read: {plain_reason(error)}.",
            advice="The folder must hold config.json and model.safetensors in transformers' layout.",
        ) from error
    missing = [*loading["missing_keys"], *loading["mismatched_keys"]]
    if missing:  # the library would initialise them at random and continue
        raise DarkroomError(
            f"{len(missing)} weights are missing from the {label} in {folder}; the first is {missing[0]}.",
            advice="The download is damaged or belongs to another model; download it again.",
        )
    return model


Fit = Literal["crop", "pad"]


def square_input(
    images_B3PP: torch.Tensor,
    *,
    side_px: int,
    mean: Sequence[float],
    std: Sequence[float],
    resized_px: int = 0,
    fit: Fit = "crop",
) -> torch.Tensor:
    """Return images in [0, 1] as normalised squares of `side_px`.

    "crop": resizes the shorter side to `resized_px` (0: `side_px`) and crops the centre. "pad": resizes the longer side
    and pads the image with black on both sides. Bicubic with antialiasing and Pillow's filter (a = -0.5); overshoot is
    clamped, as in Pillow.
    """
    height_px, width_px = images_B3PP.shape[-2:]
    if fit == "pad":
        scale = side_px / max(height_px, width_px)
        size = (round(height_px * scale), round(width_px * scale))
    else:
        shorter_px, new_px = min(height_px, width_px), resized_px or side_px
        size = (new_px * height_px // shorter_px, new_px * width_px // shorter_px)
    resized_B3PP = resize(images_B3PP, size)
    square_B3SS = _pad_to_square(resized_B3PP, side_px) if fit == "pad" else _crop_centre(resized_B3PP, side_px)
    return normalize(square_B3SS, mean=mean, std=std)


def resize(images_B3PP: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return images in [0, 1] at a height and width in pixels: bicubic with antialiasing, as `square_input` states."""
    if size == tuple(images_B3PP.shape[-2:]):
        return images_B3PP
    # On a GPU the backward pass of interpolate has no deterministic implementation.
    needs_products = torch.are_deterministic_algorithms_enabled() and images_B3PP.is_cuda
    resized_B3PP = _resize_by_products(images_B3PP, size) if needs_products else _resize(images_B3PP, size)
    return resized_B3PP.clamp(0, 1)


def normalize(images_B3PP: torch.Tensor, *, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Return images minus the mean of each channel, divided by its standard deviation."""
    mean_3, std_3 = (tensor_on(v, images_B3PP.device, images_B3PP.dtype) for v in (mean, std))
    return (images_B3PP - mean_3[:, None, None]) / std_3[:, None, None]


def _resize(images_B3PP: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return functional.interpolate(images_B3PP, size, mode="bicubic", antialias=True, align_corners=False)


def _resize_by_products(images_B3PP: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return the same as `_resize`, except for rounding, by matrix products: the filter is linear and separable."""
    rows_HP, columns_WP = (
        _resize(torch.eye(old_px, dtype=images_B3PP.dtype, device=images_B3PP.device)[None, None], (new_px, old_px))[
            0, 0
        ]
        for old_px, new_px in zip(images_B3PP.shape[-2:], size, strict=True)
    )
    return rows_HP @ images_B3PP @ columns_WP.T


def _crop_centre(images_B3PP: torch.Tensor, side_px: int) -> torch.Tensor:
    top_px, left_px = ((length_px - side_px) // 2 for length_px in images_B3PP.shape[-2:])
    return images_B3PP[..., top_px : top_px + side_px, left_px : left_px + side_px]


def _pad_to_square(images_B3PP: torch.Tensor, side_px: int) -> torch.Tensor:
    more_px, wider_px = (side_px - length_px for length_px in images_B3PP.shape[-2:])
    top_px, left_px = more_px // 2, wider_px // 2
    return functional.pad(images_B3PP, (left_px, wider_px - left_px, top_px, more_px - top_px))


def stored_linear(stored: Mapping[str, LazyTensor], name: str) -> nn.Linear:
    """Return a linear layer of a file in float32, with its bias. Raises KeyError where one is missing."""
    weight, bias = (stored[f"{name}.{kind}"].make().float() for kind in ("weight", "bias"))
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight.data, layer.bias.data = weight, bias
    return layer
