"""Traces the passes of a model's parts: `python -m modules.estimate.tracing` is the process that does it.

It reads the family and the configs of the parts as JSON from its standard input, and keeps the recordings where
`recordings_of` looks for them. With `--ship` it writes the recordings of published models that are missing in the
program, and removes those that it does not need any more; with `--ship-again`, for new libraries, it writes all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modules.estimate.architecture import architecture_of
from modules.estimate.recordings import SHIPPED, PassesOfPart, keep, kept_file, perceptual_file, shipped_file
from modules.families.kinds.identify import identify
from modules.families.parts.forwards import block_types, transformer_types
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.registry import FAMILIES, published_models
from modules.families.spec import FamilySpec, PartSpec
from modules.memory.recording import PassSize
from modules.memory.trace import trace
from modules.system.factories import load_factory
from modules.system.paths import PROGRAM_ROOT

# Several images, since a batch of one lets some functions return views. The sides and the tokens are multiples of what
# models divide or pad to; no two sizes are in the same ratio, so that no monomial looks like another.
_SIZES = tuple(
    PassSize(batch, width_px, height_px, tokens)
    for batch, width_px, height_px, tokens in (
        (3, 128, 128, 32), (2, 256, 128, 64), (3, 128, 384, 64), (5, 384, 256, 32), (2, 512, 640, 32), (4, 640, 128, 64)
    )
)  # fmt: skip


def traced_part(spec: FamilySpec, part: PartSpec, config: Mapping[str, Any]) -> PassesOfPart:
    """Return the recordings of a part's passes. Raises DarkroomError for a config that is not valid."""
    module = empty_part(load_factory(part.model_class), config)
    return {
        name: trace(
            module,
            traced,
            sizes=_SIZES,
            block_types=block_types(part.model),
            transformer_types=transformer_types(part.model),
        )
        for name, traced in load_factory(part.model.passes)(module, spec).items()
    }


def traced_perceptual() -> PassesOfPart:
    """Return the recording of the perceptual distance of images from their originals."""
    from modules.objectives.perceptual import trace_distance

    module, traced = trace_distance()
    return {"forward": trace(module, traced, sizes=_SIZES)}


def published_parts() -> Iterator[tuple[Path, FamilySpec, PartSpec, Mapping[str, Any]]]:
    """Yield the parts of all published models and their variants, each shape once, with the files they ship in."""
    known: set[Path] = set()
    for spec, configs in _shipped_models():
        for part in spec.parts:
            for config in _variants(spec, part, configs.get(part.name)):
                file = shipped_file(spec, part, config)
                if file not in known:
                    known.add(file)
                    yield file, spec, part, config


def _shipped_models() -> Iterator[tuple[FamilySpec, Mapping[str, Mapping[str, Any]]]]:
    """Yield the family and the configs of each published model, and of the demo model."""
    for model in published_models():
        if configs := model.shipped_configs():
            yield FAMILIES[model.family], configs
    demo = PROGRAM_ROOT / "demo" / "model"
    family = identify(demo).family
    architecture = architecture_of(str(demo), family)
    assert architecture is not None, "the demo model has configs"
    yield FAMILIES[family], architecture.configs


def _variants(spec: FamilySpec, part: PartSpec, config: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if config is None:
        return
    yield config
    if part.role == "denoiser":
        channels = [spec.latents.in_channels(more) for more in spec.variants.values()]
        yield from ({**config, "in_channels": n} for n in channels if n != config["in_channels"])


def main(arguments: list[str]) -> None:
    """Trace the parts that the standard input names, or all that are shipped."""
    if arguments in (["--ship"], ["--ship-again"]):
        ship(again=arguments == ["--ship-again"])
        return
    request = json.load(sys.stdin)
    spec = FAMILIES[request["family"]]
    trace_parts(spec, request["configs"])


def ship(*, again: bool) -> None:
    """Write the recordings of published models into the program, and remove those that no model needs any more.

    Recordings that are there are traced only with `again`: their names change with the tracer's code, but not with the
    libraries.
    """
    keep(perceptual_file(), traced_perceptual())
    needed = {perceptual_file()}
    for file, spec, part, config in published_parts():
        needed.add(file)
        if again or not file.is_file():
            keep(file, traced_part(spec, part, config))
    for file in set(SHIPPED.iterdir()) - needed:
        file.unlink()


def trace_parts(spec: FamilySpec, configs: Mapping[str, Mapping[str, Any]]) -> None:
    """Trace the parts of a model that have a config, and keep the recordings."""
    for part in spec.parts:
        if part.name in configs:
            keep(kept_file(spec, part, configs[part.name]), traced_part(spec, part, configs[part.name]))


if __name__ == "__main__":
    main(sys.argv[1:])
