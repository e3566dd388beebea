"""Checks of a VAE before it is loaded: that its file contains one of the family, and its dtype."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.families.kinds.identify import identify
from modules.families.kinds.registry import serves_as
from modules.families.kinds.vae import vae_weights_at
from modules.families.spec import FamilySpec, PartSpec
from modules.formats.float8_scales import ADVICE
from modules.system.paths import from_root
from modules.system.problem import Problem, shorten

_CHOOSE = "Choose a VAE of the model's family, or leave it empty to use the model's own."


def problems_of_vaes(config: Config) -> Iterator[Problem]:
    """Yield an error for each file that cannot be the family's VAE, and a note on a VAE that overflows in its dtype."""
    spec = config.family
    for part in (p for p in spec.parts if p.role == "vae"):
        settings = config.part(part.name)
        if name := settings.file.strip():
            yield from _file(spec, part, name)
        if spec.latents.overflows_in_float16 and settings.dtype == "float16":
            yield Problem(
                f"parts.{part.name}.dtype",
                f"The VAE of {spec.label} overflows in float16, so it is used in "
                f"{config.training.fallback_train_dtype}, the fallback train dtype, unless its config allows float16.",
                "info",
            )


def _file(spec: FamilySpec, part: PartSpec, name: str) -> Iterator[Problem]:
    path, shown = f"parts.{part.name}.file", shorten(name, max_chars=200)
    file_kind = identify(vae_weights_at(from_root(name)))
    channels = str(spec.latents.channels)
    if file_kind.problem:
        yield Problem(path, f"{shown} {file_kind.problem}", advice=ADVICE)
    elif not serves_as(file_kind, "VAE"):
        advice = "Choose a VAE file, or leave it empty to use the model's own."
        yield Problem(path, file_kind.explain(f"{shown} contains no VAE."), advice=advice)
    elif (given := file_kind.facts.get("latent_channels", channels)) != channels:
        message = f"{shown} is a VAE with {given} latent channels; {spec.label} needs {channels}."
        yield Problem(path, message, advice=_CHOOSE)
    elif file_kind.facts.get("class", part.class_name) != part.class_name:
        yield Problem(path, f"{shown} is not a VAE of the kind that {spec.label} has.", advice=_CHOOSE)
