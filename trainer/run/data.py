"""Building the caches and the loaders that deliver batches; caches are filled if they are in use."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from modules.config.sections.data import Data
from modules.config.sections.masks import Masks
from modules.data.captions.drawing import CaptionDropout
from modules.data.captions.sources import caption_is_cacheable
from modules.data.dataset import Dataset
from modules.data.datasets import Datasets
from modules.data.rejected import RejectedVersions
from modules.data.versions import ImageVersion, ImageVersions
from modules.system.dtypes import dtype_of
from modules.system.paths import from_root
from modules.system.problem import count
from trainer.commands import CommandDesk
from trainer.data.caching import Caches, Emit, EncoderIdentities, ImageJobs, Stores, overflow_warning
from trainer.data.encoders import Encoders
from trainer.data.loader import Loader, RejectedImages
from trainer.data.mask_cache import cached_masks
from trainer.data.masks import MaskRules, MaskSource
from trainer.data.sources import (
    CachedConditioning,
    CachedLatents,
    ConditioningByCaption,
    ConditioningSource,
    EncodedConditioning,
    EncodedLatents,
    LatentSource,
)
from trainer.events import PhaseChanged
from trainer.run.machine import Machine
from trainer.run.model import LoadedModel


@dataclass(frozen=True, eq=False)
class Loaders:
    """The loaders of the training images and of the validation images."""

    training: Loader
    validation: Loader


def caches_of(
    data: Data, cache_dir: str, model: LoadedModel, machine: Machine, desk: CommandDesk, emit: Emit
) -> Caches:
    """Return the caches of a run, in the cache folder or in memory."""
    encoders = Encoders(model.family, machine.train_device, machine.precision.autocast)
    dtype = None if data.cache_dtype == "encoder" else dtype_of(data.cache_dtype)
    stores = Stores.of(from_root(cache_dir) if data.cache_location == "disk" else None, dtype)
    return Caches(stores, stored_identities(data, model.identities), encoders, model.placement, desk, emit)


def stored_identities(data: Data, identities: EncoderIdentities) -> EncoderIdentities:
    """Return the identities of a run's encoders as its cache keys contain them: with the dtype of the entries."""
    return identities if data.cache_dtype == "encoder" else identities.stored_in(data.cache_dtype)


def build_loaders(
    data: Data, masks: Masks, datasets: Datasets, model: LoadedModel, machine: Machine, caches: Caches
) -> Loaders:
    """Fill the caches for the images of a run and return the loaders for training and validation."""
    if datasets.index is not None:
        datasets.index.save()  # only here: a check leaves no file behind
    dropout = CaptionDropout(data.caption_dropout, data.caption_dropout_2 if _num_encoders(model) > 1 else None)
    training = _loader(data, masks, datasets, datasets.training, model, machine, caches, caption_dropout=dropout)
    validation = _loader(
        data, masks, datasets, datasets.validation, model, machine, caches, caption_dropout=CaptionDropout()
    )
    return Loaders(training, validation)


def plan_fingerprint(loader: Loader) -> str:
    """Return a hash of the images of a run, their sizes and captions, on which the order of an epoch depends."""
    facts = [
        [
            str(e.image.path),
            e.image.size_bytes,
            list(e.image.captions),
            [str(p.bucket) for p in e.resize_crops],
            *([str(e.image.rejected.path), e.image.rejected.size_bytes] if e.image.rejected is not None else []),
        ]
        for e in loader.dataset.examples
    ]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=12).hexdigest()


def _loader(
    data: Data,
    masks: Masks,
    datasets: Datasets,
    dataset: Dataset,
    model: LoadedModel,
    machine: Machine,
    caches: Caches,
    *,
    caption_dropout: CaptionDropout,
) -> Loader:
    """Fill the caches for one dataset and return its loader; images that cannot be read are left out."""
    settings, is_validation = datasets.settings, dataset is datasets.validation
    usable, latents, rejected = _latent_sources(data, settings.run_seed, dataset, machine, caches)
    versions = ImageVersions(usable, settings.run_seed, is_cached=data.latent_cache)
    return Loader(
        dataset=usable,
        versions=versions,
        plans=datasets.plans if usable is datasets.training else settings.plans_of(usable, is_validation=is_validation),
        latents=latents,
        conditioning=_conditioning_source(data, usable, model, machine, caches, run_seed=datasets.settings.run_seed),
        device=machine.train_device,
        caption_dropout=caption_dropout,
        draws_captions_anew=not data.text_cache or model.trains_text_encoder,
        run_seed=settings.run_seed,
        threads=data.loader_threads,
        masks=_mask_source(masks, data, usable, settings.run_seed, machine, caches, is_validation=is_validation)
        if masks.enabled
        else None,
        rejected=RejectedImages(RejectedVersions(versions), rejected) if rejected is not None else None,
    )


def _mask_source(
    masks: Masks,
    data: Data,
    dataset: Dataset,
    run_seed: int,
    machine: Machine,
    caches: Caches,
    *,
    is_validation: bool,
) -> MaskSource:
    """Return the masks of a dataset, cached like the latents. Validation ignores no mask and needs no prior."""
    rules = MaskRules(masks.unmasked_weight, masks.normalize_area_loss)
    if not is_validation:
        rules = replace(
            rules,
            unmasked_probability=masks.unmasked_probability,
            preservation_weight=masks.prior_preservation_weight,
        )
    cache = None
    if data.latent_cache:
        cache = cached_masks(dataset, caches, run_seed=run_seed, verify=data.verify_cache, threads=data.loader_threads)
    latent_factor = caches.encoders.family.spec.latent_factor
    return MaskSource(dataset, machine.train_device, rules, latent_factor, run_seed, cache)


def _num_encoders(model: LoadedModel) -> int:
    return len(model.family.spec.names_of("text_encoder"))


def _latent_sources(
    data: Data, run_seed: int, dataset: Dataset, machine: Machine, caches: Caches
) -> tuple[Dataset, LatentSource, LatentSource | None]:
    """Return the examples that can be used, the source of their latents, and that of their rejected images, if any."""
    versions = ImageVersions(dataset, run_seed, is_cached=data.latent_cache)
    rejected = RejectedVersions(versions) if dataset.has_pairs else None
    if not data.latent_cache:
        device, dtype, warn = machine.train_device, machine.precision.compute_dtype, _warn_once(caches.emit)
        chosen = EncodedLatents(dataset, caches.encoders, device, dtype, warn)
        return dataset, chosen, replace(chosen, dataset=rejected.dataset) if rejected is not None else None
    if dataset.examples:  # without a validation concept, its dataset is empty
        caches.emit(PhaseChanged("scanning", count(len(dataset.examples), "image")))
    sides = [caches.image_jobs(v, verify=data.verify_cache) for v in (versions, rejected) if v is not None]
    broken = caches.build_latents(*sides, threads=data.loader_threads)
    if broken:
        dataset, sides = dataset.without(broken), [_without(jobs, broken) for jobs in sides]
    sources = [_cached_latents(jobs, machine, caches) for jobs in sides]
    return dataset, sources[0], sources[1] if rejected is not None else None


def _without(jobs: ImageJobs, broken: frozenset[int]) -> ImageJobs:
    """Return the jobs without those of the examples at these indices, renumbered."""
    renumbered = {old: new for new, old in enumerate(sorted({n for n, *_ in jobs} - broken))}
    return {(renumbered[n], r, v): job for (n, r, v), job in jobs.items() if n not in broken}


def _cached_latents(jobs: ImageJobs, machine: Machine, caches: Caches) -> CachedLatents:
    def rebuild(version: ImageVersion) -> torch.Tensor:
        return caches.rebuild_latents(jobs[version.place])

    keys = {place: job.key for place, job in jobs.items()}
    return CachedLatents(caches.stores.latents, keys, machine.train_device, machine.precision.compute_dtype, rebuild)


def texts_to_cache(dataset: Dataset, *, text_encoder_trains: bool, run_seed: int) -> set[str]:
    """Return the texts of a dataset that are encoded ahead of training, and the empty one; none if none can be."""
    is_cacheable = _is_cacheable(text_encoder_trains)
    if not dataset.examples or not is_cacheable(""):  # if the empty caption is not cacheable, no caption is
        return set()
    return {"", *(t for e in dataset.examples for t in dataset.texts(e, run_seed=run_seed) if is_cacheable(t))}


def _is_cacheable(text_encoder_trains: bool) -> Callable[[str], bool]:
    return functools.partial(caption_is_cacheable, text_encoder_trains=text_encoder_trains)


def _warn_once(emit: Emit) -> Callable[[list[str]], None]:
    """Return a function that warns about each file once that the VAE cannot encode in its own dtype."""
    named: set[str] = set()

    def warn(files: list[str]) -> None:
        fresh = [f for f in files if f not in named]
        named.update(fresh)
        if fresh:
            emit(overflow_warning(fresh))

    return warn


def _conditioning_source(
    data: Data, dataset: Dataset, model: LoadedModel, machine: Machine, caches: Caches, *, run_seed: int
) -> ConditioningSource:
    device, dtype = machine.train_device, machine.precision.compute_dtype
    is_cacheable = _is_cacheable(model.trains_text_encoder)
    if not data.text_cache:
        encoded = EncodedConditioning(model.family, caches.encoders.caption, device, dtype)
        return ConditioningByCaption(is_cacheable, encoded)
    if texts := texts_to_cache(dataset, text_encoder_trains=model.trains_text_encoder, run_seed=run_seed):
        caches.build_text(texts)
    cached = CachedConditioning(
        caches.stores.text, caches.caption_key, model.family, device, dtype, caches.rebuild_text
    )
    return ConditioningByCaption(is_cacheable, cached)
