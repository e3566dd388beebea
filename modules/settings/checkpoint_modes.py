"""What gradient checkpointing computes again in the backward pass."""

from __future__ import annotations

from typing import Literal

# "transformer": the transformer blocks; "selective": of every block all but its attention and its products of long
# vectors, whose results are kept; "block": every block; "whole": the whole part; "auto": as few blocks as fit the free
# memory, chosen at the start of a run.
CheckpointMode = Literal["off", "auto", "selective", "transformer", "block", "whole"]

LEAST_KEPT_LENGTH = 64  # of the vectors of a product whose result "selective" keeps
