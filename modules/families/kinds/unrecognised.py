"""Unknown files, and files that cannot be read. Torch-free."""

from __future__ import annotations

from modules.families.kinds.record import FileKindSpec

UNKNOWN = FileKindSpec("unknown", "Unknown", "A file or tensors of an unknown kind.")
BROKEN = FileKindSpec("broken", "Unreadable", "A file that is missing, damaged, or not a model file.")
