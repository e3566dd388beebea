"""Warnings of libraries that mean nothing to a user of this program, and would be read as its own."""

from __future__ import annotations

import logging

# bitsandbytes wants a package with faster kernels for the CPU, at each import; nothing here uses them.
# transformers wants torchvision for image processors; Pillow's are what is used here, and torchvision stays out.
_IRRELEVANT = ("bitsandbytes.backends.cpu.ops", "transformers.utils.import_utils")


def hide_library_warnings() -> None:
    """Hide them. Called where the program starts, before any of these libraries is imported."""
    for name in _IRRELEVANT:
        logging.getLogger(name).setLevel(logging.ERROR)
