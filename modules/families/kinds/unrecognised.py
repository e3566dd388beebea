"""What is no file this program knows, and what cannot be read. Torch-free."""

from __future__ import annotations

from modules.families.kinds.record import FileKindSpec

UNKNOWN = FileKindSpec("unknown", "Unknown", "Tensors, or files, of no kind this program knows.")
BROKEN = FileKindSpec("broken", "Unreadable", "A file that is missing, damaged, or no model file at all.")
