"""The size of the slices in which 16-bit weights are updated. Torch-free: the memory estimate uses it too."""

from __future__ import annotations

SLICE_WEIGHTS = 1 << 24
"""How many weights are updated at once, in float32: 64 MiB per array. A larger tensor is updated alone."""
