"""The table of phases: which roles of a model must be on the training device in which phase; the others rest."""

from __future__ import annotations

from dataclasses import dataclass

from modules.families.spec import FamilySpec, Role

CACHE_PICTURES = "cache_pictures"
CACHE_CAPTIONS = "cache_captions"
TRAIN = "train"
VALIDATE = "validate"
SAMPLE_ENCODE = "sample_encode"
SAMPLE_DENOISE = "sample_denoise"
SAMPLE_DECODE = "sample_decode"

_TABLE: dict[str, frozenset[Role]] = {
    CACHE_PICTURES: frozenset({"vae"}),
    CACHE_CAPTIONS: frozenset({"text_encoder"}),
    SAMPLE_ENCODE: frozenset({"text_encoder"}),
    SAMPLE_DENOISE: frozenset({"denoiser"}),
    SAMPLE_DECODE: frozenset({"vae"}),
}


@dataclass(frozen=True, slots=True)
class PhaseFacts:
    """What of a run decides who is needed: what comes from a cache, and which parts learn."""

    has_latent_cache: bool
    has_text_cache: bool
    trained_parts: frozenset[str]


def needed_parts(phase: str, spec: FamilySpec, facts: PhaseFacts) -> frozenset[str]:
    """Return the parts that a phase needs. Training and validating need the denoiser, and each encoder whose results
    are not cached. A part that learns stays where it learns, for its optimizer state is there.
    """
    roles = _TABLE.get(phase)
    if roles is None:
        roles = frozenset[Role]({"denoiser"})
        roles |= frozenset[Role]() if facts.has_latent_cache else {"vae"}
        roles |= frozenset[Role]() if facts.has_text_cache else {"text_encoder"}
    needed = {p.name for p in spec.parts if p.role in roles}
    if phase in (TRAIN, VALIDATE):
        needed |= facts.trained_parts
    return frozenset(needed)
