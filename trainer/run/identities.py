"""The identities of a model's encoders, which the keys of its caches contain."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from modules.adapters.kept_layers import kept_fingerprint
from modules.adapters.start import Start
from modules.config.quantized_parts import QuantizedParts
from modules.config.sections.model import Model
from modules.data.cache.store import weights_fingerprint
from modules.families.protocol import ModelFamily, Part
from trainer import phases
from trainer.data.caching import EncoderIdentities
from trainer.step.precision import Precision


def identities_of(
    model: Model,
    family: ModelFamily,
    facts: phases.PhaseFacts,
    precision: Precision,
    start: Start | None,
    quantized: QuantizedParts,
) -> EncoderIdentities:
    """Return the identities of the encoders for cache keys; empty for encoders whose cache is not used.

    Layers that the run keeps on an encoder are part of it.
    """

    def fingerprint(part: Part) -> str:
        kept = start.kept_in(part.spec.name) if start is not None else []
        identity = weights_fingerprint(part.module)
        if (chosen := quantized.formats.get(part.spec.name)) is not None:
            identity = f"{identity} in {chosen.format.name}"  # formats with the same weights round inputs or not
        return f"{identity} with {kept_fingerprint(kept)}" if kept else identity

    hashed = {
        name: part
        for name, part in family.parts.items()
        if (part.spec.role == "vae" and facts.has_latent_cache)
        or (part.spec.role == "text_encoder" and facts.has_text_cache)
    }
    with ThreadPoolExecutor() as pool:  # a hash does not hold the interpreter lock, and SDXL's take seconds
        fingerprints = dict(zip(hashed, pool.map(fingerprint, hashed.values()), strict=True))
    images = [fingerprints.get(p.name, "") for p in family.spec.parts if p.role == "vae"]
    texts = [fingerprints.get(p.name, "") for p in family.spec.parts if p.role == "text_encoder"]
    # Convolutions round differently with the channels last. The automatic choice never changes a VAE with a cache.
    order = ["channels last"] if model.channels_last == "on" else []
    return EncoderIdentities(
        # Images are encoded outside autocast, but in TF32 where the run's precision allows it on this device.
        images="|".join([*images, family.image_identity(), f"tf32 {precision.tf32}", *order]),
        captions="|".join([*texts, family.text_identity(), precision.name]),
    )
