"""Settings of the process while libraries are imported (their warnings and plugins, garbage collection), and of child
processes.
"""

from __future__ import annotations

import gc
import logging
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from modules.system.hardware import torch_build

# bitsandbytes wants a package with faster kernels for the CPU, at each import; nothing here uses them.
# transformers wants torchvision for image processors; Pillow's are what is used here, and torchvision stays out.
_IRRELEVANT = ("bitsandbytes.backends.cpu.ops", "transformers.utils.import_utils")

# The names of the settings of torch's allocators, the newest first (torch's documentation, "CUDA semantics").
_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_GROWING, FIXED_SEGMENTS = "expandable_segments:True", "expandable_segments:False"

SWITCH_INTERVAL_SECONDS = 0.0001
"""The switch interval of Python's threads next to a window: every call of Tk gives up the interpreter lock, and waits
for it so long while another thread computes."""


def hide_library_warnings() -> None:
    """Hide warnings of libraries that mean nothing to a user, and would be read as this program's.

    Called where the program starts, before any of these libraries is imported.
    """
    for name in _IRRELEVANT:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="Image size .* could be decompression bomb")  # larger ones are refused


def use_no_pydantic_plugins() -> None:
    """Keep pydantic from searching the metadata of every installed package for plugins at each start: none is used."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


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


@contextmanager
def collection_off() -> Iterator[None]:
    """Switch garbage collection off for the time of an import, which makes many objects and hardly any garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def own_process_group() -> dict[str, Any]:
    """Return the options of a child process that keep Ctrl-C in a terminal from it, and let its own children be ended
    with it.
    """
    if sys.platform == "win32":  # where a console would open, too
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return {"start_new_session": True}
