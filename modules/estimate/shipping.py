"""Makes the recordings that ship with the program: `python -m modules.estimate.shipping`.

It writes the missing recordings of published models, and removes those that are not needed any more. With `--again` it
writes all: for new libraries, or if a model class of this program computes otherwise: the names stay the same then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modules.estimate.architecture import architecture_of, part_configs
from modules.estimate.recordings import SHIPPED, keep, perceptual_file, shipped_file
from modules.estimate.tracing import trace_part, trace_perceptual
from modules.families.kinds.identify import identify
from modules.families.registry import FAMILIES, files_of, published_models
from modules.families.spec import FamilySpec, PartSpec
from modules.system.paths import PROGRAM_ROOT

_DEMOS = (PROGRAM_ROOT / "demo" / "model", PROGRAM_ROOT / "demo" / "flow" / "model")


def ship(*, again: bool) -> None:
    """Write the recordings of published models into the program, and remove those that no model needs any more.

    Recordings that are there are traced only with `again`: their names change with the tracer's code, but not with the
    libraries.
    """
    keep(perceptual_file(), trace_perceptual())
    needed = {perceptual_file()}
    for file, spec, part, config in published_parts():
        needed.add(file)
        if again or not file.is_file():
            keep(file, trace_part(spec, part, config))
    for file in set(SHIPPED.iterdir()) - needed:
        file.unlink()


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
    """Yield the family and the configs of each published model, and of the demo models."""
    for model in published_models():
        if configs := model.shipped_configs():
            spec = FAMILIES[model.family]
            for of_variant in (spec, *map(spec.of_variant, spec.caption_images)):
                yield of_variant, part_configs(of_variant, configs)
    for folder in _DEMOS:
        family = identify(folder).family
        architecture = architecture_of(str(folder), family)
        assert architecture is not None, "a demo model has configs"
        yield FAMILIES[family], architecture.configs


def _variants(spec: FamilySpec, part: PartSpec, config: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if config is None:
        return
    yield config
    if part.role == "denoiser":
        channels = [spec.latents.in_channels(more) for more in spec.variants.values()]
        yield from ({**config, "in_channels": n} for n in channels if n != config["in_channels"])
        file = files_of(spec.name).denoiser_file
        yield from ({**config, **values} for values in (file.config_marks.values() if file is not None else ()))


if __name__ == "__main__":
    ship(again=sys.argv[1:] == ["--again"])
