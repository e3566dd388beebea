"""The table of phases: which roles of a model must be on the training device in which phase. Others are offloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modules.config.schema import Config
from modules.config.usage import (
    data_in_use,
    embeddings_in_use,
    learns_from,
    method_of,
    trained_embeddings,
    trained_parts,
    trains_on_pixels,
    uses_denoiser,
)
from modules.families.spec import FamilySpec, Role

CACHE_IMAGES = "cache_images"
CACHE_CAPTIONS = "cache_captions"
TRAIN = "train"
VALIDATE = "validate"
SAMPLE_IMAGES = "sample_images"
SAMPLE_ENCODE = "sample_encode"
SAMPLE_DENOISE = "sample_denoise"
SAMPLE_DECODE = "sample_decode"

_TABLE: dict[str, frozenset[Role]] = {
    CACHE_IMAGES: frozenset({"vae"}),
    CACHE_CAPTIONS: frozenset({"text_encoder"}),
    SAMPLE_IMAGES: frozenset({"vae"}),
    SAMPLE_ENCODE: frozenset({"text_encoder"}),
    SAMPLE_DENOISE: frozenset({"denoiser", "guidance"}),
    SAMPLE_DECODE: frozenset({"vae"}),
}


@dataclass(frozen=True, slots=True)
class PhaseFacts:
    """The facts of a run that decide which parts a phase needs.

    They are the caches in use, the trained parts, and whether a training step samples images (`samples_to_learn`) and
    decodes them, and whether it needs the latents of images (`reads_images`). `encodes_some_captions`: captions that
    contain a trained embedding are encoded in each step, although the others are cached. With `needs_only_trained`,
    training and validation need no part but the trained ones.
    """

    has_latent_cache: bool
    has_text_cache: bool
    trained_parts: frozenset[str]
    samples_to_learn: bool = False
    reads_images: bool = True
    encodes_some_captions: bool = False
    needs_only_trained: bool = False


def phase_facts(config: Config) -> PhaseFacts:
    """Return the facts of a config that decide which parts a phase needs."""
    spec = config.family
    trained = frozenset(p.name for p in trained_parts(config))
    data = data_in_use(config)
    trains_text_encoder = any(p.role == "text_encoder" and p.name in trained for p in spec.parts)
    return PhaseFacts(
        has_latent_cache=data.latent_cache,
        has_text_cache=data.text_cache and not trains_text_encoder,
        trained_parts=trained,
        samples_to_learn=method_of(config).samples_images,
        reads_images=learns_from(config) != "prompts",
        encodes_some_captions=bool(trained_embeddings(config)),
        needs_only_trained=trains_on_pixels(config),
    )


def needed_parts(phase: str, spec: FamilySpec, facts: PhaseFacts) -> frozenset[str]:
    """Return the parts that a phase needs.

    Training and validation need the denoiser, and each encoder whose outputs are not cached; a method that samples
    images also decodes them while it trains, and may be guided by a second denoiser. Trained parts stay on the training
    device with their optimizer state.
    """
    roles = _TABLE.get(phase)
    if roles is None and facts.needs_only_trained:
        return facts.trained_parts
    if roles is None:
        roles = frozenset[Role]({"denoiser"})
        decodes = phase == TRAIN and facts.samples_to_learn
        roles |= frozenset[Role]({"guidance"}) if decodes else frozenset[Role]()
        encodes = not facts.has_latent_cache and (facts.reads_images or phase == VALIDATE)
        roles |= frozenset[Role]({"vae"}) if encodes or decodes else frozenset[Role]()
        is_cached = facts.has_text_cache and not facts.encodes_some_captions
        roles |= frozenset[Role]() if is_cached else {"text_encoder"}
    needed = {p.name for p in spec.parts if p.role in roles}
    if phase in (TRAIN, VALIDATE):
        needed |= facts.trained_parts
    return frozenset(needed)


def encoders_to_drop(config: Config, may_stay: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the large text encoders that a run neither trains nor writes, and whose outputs it caches.

    A fine-tune writes all parts of its model. Where the device has room for an encoder, it stays there.
    """
    if config.training.trains == "full" or not uses_denoiser(config) or embeddings_in_use(config):
        return []
    if not phase_facts(config).has_text_cache:
        return []
    staying, trained = may_stay.get(TRAIN, frozenset()), {p.name for p in trained_parts(config)}
    large = [p.name for p in config.family.parts if p.role == "text_encoder" and p.model.is_large]
    return [name for name in large if name not in staying and name not in trained]
