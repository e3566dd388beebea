"""Counter-based randomness: every random operation uses a seed derived from the run's seed, a purpose and counters.

No seed depends on how many random numbers were generated before, so a resumed run uses the same numbers as an
uninterrupted one (the idea of Karras et al. 2024, EDM2, who reseed every iteration from the number of images seen).
"""

from __future__ import annotations

import hashlib
import struct


def derive_seed(run_seed: int, purpose: str, *counters: int) -> int:
    """Return a 63-bit seed that is a function of all arguments; equal arguments give equal seeds."""
    digest = hashlib.blake2b(purpose.encode("utf-8", "surrogatepass"), digest_size=8, person=b"darkroom")
    digest.update(struct.pack(f"<{len(counters) + 1}q", run_seed, *counters))
    return int.from_bytes(digest.digest(), "little") >> 1
