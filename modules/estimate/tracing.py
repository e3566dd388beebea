"""Traces the passes of a model's parts: `python -m modules.estimate.tracing` is the process that does it.

It reads the family, its variant and the configs of the parts as JSON from its standard input, and keeps the recordings
where `recordings_of` looks for them. `shipping.py` makes the recordings of published models.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from modules.estimate.recordings import PassesOfPart, keep, kept_file
from modules.families.parts.forwards import block_types, transformer_types
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.traced_passes import keep_norms_whole
from modules.families.registry import FAMILIES
from modules.families.spec import DENOISERS, FamilySpec, PartSpec
from modules.memory.recording import PassSize
from modules.memory.trace import trace
from modules.system.factories import load_factory

# Several images, since some functions return views for a batch of one. Sides and tokens are multiples of the numbers by
# which models divide or to which they pad; no two sizes have the same ratio, so no monomial looks like another.
_SIZES = tuple(
    PassSize(batch, width_px, height_px, tokens)
    for batch, width_px, height_px, tokens in (
        (3, 128, 128, 32), (2, 256, 128, 64), (3, 128, 384, 64), (5, 384, 256, 32), (2, 512, 640, 32), (4, 640, 128, 64)
    )
)  # fmt: skip
_USUAL_FACTOR = 8


def trace_part(spec: FamilySpec, part: PartSpec, config: Mapping[str, Any]) -> PassesOfPart:
    """Return the recordings of a part's passes. Raises DarkroomError for a config that is not valid."""
    module = empty_part(load_factory(part.model_class), config)
    if part.role in DENOISERS:
        keep_norms_whole(module)
    return {
        name: trace(
            module,
            traced,
            sizes=_sizes_of(spec),
            block_types=block_types(part.model),
            transformer_types=transformer_types(part.model),
        )
        for name, traced in load_factory(part.model.passes)(module, spec).items()
    }


def _sizes_of(spec: FamilySpec) -> tuple[PassSize, ...]:
    """Return sizes whose latents have the same sides as with the usual factor, so all traces have as many tokens."""
    times = max(1, spec.latents.factor // _USUAL_FACTOR)
    return tuple(replace(size, width_px=times * size.width_px, height_px=times * size.height_px) for size in _SIZES)


def trace_perceptual() -> PassesOfPart:
    """Return the recording of the perceptual distance of images from their originals."""
    from modules.objectives.perceptual import trace_distance

    module, traced = trace_distance()
    return {"forward": trace(module, traced, sizes=_SIZES)}


def trace_parts(spec: FamilySpec, configs: Mapping[str, Mapping[str, Any]]) -> None:
    """Trace the parts of a model that have a config, and keep the recordings."""
    for part in spec.parts:
        if part.name in configs:
            keep(kept_file(spec, part, configs[part.name]), trace_part(spec, part, configs[part.name]))


def main() -> None:
    """Trace the parts that the standard input names."""
    request = json.load(sys.stdin)
    trace_parts(FAMILIES[request["family"]].of_variant(request["variant"]), request["configs"])


if __name__ == "__main__":
    main()
