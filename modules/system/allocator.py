"""The settings of torch's allocator on a GPU, which torch reads from the environment when it first uses the GPU."""

from __future__ import annotations

import os
import platform
import sys

from modules.system.hardware import torch_build

# The names of the settings of torch's allocators, the newest first (torch's documentation, "CUDA semantics").
_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_GROWING, FIXED_SEGMENTS = "expandable_segments:True", "expandable_segments:False"


def use_growing_segments() -> None:
    """Let torch's allocator on an NVIDIA GPU extend its segments, so that free memory is not lost in gaps between them.

    A run takes tensors of other sizes in each phase and for each image size. Torch reads the setting when it first uses
    the GPU; what the user has set stays. Only Linux supports it: on Windows torch would print a warning, and in the
    subsystem of Windows for Linux some drivers refuse the very first allocation (pytorch/pytorch issue 192330).
    """
    is_set = any(name in os.environ for name in _ALLOCATOR_SETTINGS)
    is_of_windows = "microsoft" in platform.release().lower()
    if sys.platform == "linux" and not is_of_windows and not is_set and not torch_build().startswith("rocm"):
        os.environ[_ALLOCATOR_SETTINGS[0]] = _GROWING


def grows_segments() -> bool:
    """Return whether `use_growing_segments` has let torch's allocator extend its segments."""
    return os.environ.get(_ALLOCATOR_SETTINGS[0]) == _GROWING


def fix_segments() -> None:
    """Undo `use_growing_segments` for the processes that this one starts from now on."""
    os.environ[_ALLOCATOR_SETTINGS[0]] = FIXED_SEGMENTS


def allocates_by_driver() -> bool:
    """Return whether the user lets the driver of an NVIDIA GPU allocate memory (cudaMallocAsync), instead of torch."""
    return any("cudaMallocAsync" in os.environ.get(name, "") for name in _ALLOCATOR_SETTINGS)
