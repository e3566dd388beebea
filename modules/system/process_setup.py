"""Settings of the process: its standard streams, the warnings and plugins of libraries and the garbage collection while
they are imported; and of child processes.
"""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# bitsandbytes wants a package with faster kernels for the CPU, at each import; nothing here uses them.
# transformers wants torchvision for image processors; Pillow's are what is used here, and torchvision stays out.
_IRRELEVANT = ("bitsandbytes.backends.cpu.ops", "transformers.utils.import_utils")

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


def open_missing_streams() -> None:
    """Give the program the standard streams without which it was started, as by `2>&-`, a service, or pythonw.

    The numbers of closed ones would go to the files that are opened next, into which libraries then write messages.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - as long as the process
            os.set_inheritable(stream.fileno(), True)  # else it is closed again in child processes
            setattr(sys, name, stream)


def use_no_pydantic_plugins() -> None:
    """Keep pydantic from searching the metadata of every installed package for plugins at each start: none is used."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


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
