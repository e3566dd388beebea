"""How trained weights in 16 bits are cut for a step; torch-free, as the memory estimate wants to know it too."""

from __future__ import annotations

SLICE_WEIGHTS = 1 << 24
"""How many of them are moved at once, in float32: 64 MiB for each array. A larger tensor is moved alone."""
