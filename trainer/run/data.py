"""Building the caches and the loaders that deliver batches; caches are filled if they are in use."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import torch

from modules.config.sections.data import Data
from modules.config.sections.masks import Masks
from modules.data.cache.build import EncodingJob, ImageJob
from modules.data.cache.inpainting import conditioning_job, inpainting_mask_file
from modules.data.cache.masks import MaskFile
from modules.data.captions.drawing import CaptionDropout
from modules.data.captions.sources import caption_is_cacheable
from modules.data.dataset import Dataset
from modules.data.datasets import Datasets
from modules.data.rejected import RejectedVersions
from modules.data.versions import ImageVersion, ImageVersions
from modules.system.devices import Device
from modules.system.dtypes import dtype_of
from modules.system.paths import from_root
from modules.system.problem import count
from modules.system.ranks import ONLY_RANK, Rank
from trainer.commands import CommandDesk
from trainer.data.caching import Caches, Emit, EncoderIdentities, ImageJobs, Stores, overflow_warning
from trainer.data.depth import DepthSource
from trainer.data.encoders import Encoders
from trainer.data.inpainting import InpaintingSource
from trainer.data.inpainting_cache import conditioning_jobs
from trainer.data.loader import Loader, RejectedImages
from trainer.data.mask_cache import cached_masks
from trainer.data.masks import MaskCache, MaskReader, MaskRules, MaskSource
from trainer.data.sources import (
    BlankLatents,
    CachedConditioning,
    CachedLatents,
    ConditioningByCaption,
    ConditioningSource,
    EncodedConditioning,
    EncodedLatents,
    LatentSource,
    NoConditioning,
    Pixels,
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
    identities = stored_identities(data, model.identities)
    return Caches(stores, identities, encoders, model.placement, desk, emit, ranks=machine.ranks)


def stored_identities(data: Data, identities: EncoderIdentities) -> EncoderIdentities:
    """Return the identities of a run's encoders as its cache keys contain them: with the dtype of the entries."""
    return identities if data.cache_dtype == "encoder" else identities.stored_in(data.cache_dtype)


def build_loaders(
    data: Data,
    masks: Masks,
    datasets: Datasets,
    model: LoadedModel,
    machine: Machine,
    caches: Caches,
    *,
    rank: Rank = ONLY_RANK,
    in_step: bool = False,
) -> Loaders:
    """Fill the caches for the images of a run and return the loaders for training and validation.

    That of training delivers the share of one of several processes, `rank`. With `in_step` all of them deliver equally
    many batches of each accumulation group.
    """
    if datasets.index is not None and machine.ranks.rank.is_main:
        datasets.index.save()  # only here: a check leaves no file behind
    dropout = CaptionDropout(data.caption_dropout, data.caption_dropout_2 if _num_encoders(model) > 1 else None)
    common = data, masks, datasets
    rest = model, machine, caches
    training = _loader(*common, datasets.training, *rest, caption_dropout=dropout, rank=rank, in_step=in_step)
    validation = _loader(
        *common, datasets.validation, *rest, caption_dropout=CaptionDropout(), rank=ONLY_RANK, in_step=False
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
    rank: Rank,
    in_step: bool,
) -> Loader:
    """Fill the caches for one dataset and return its loader; images that cannot be read are left out.

    Where the method learns from prompts, training images are not read.
    """
    settings, is_validation = datasets.settings, dataset is datasets.validation
    reads_images = is_validation or settings.reads_images
    usable, latents, rejected = _latent_sources(
        data, settings.run_seed, dataset, machine, caches, reads_images=reads_images and not settings.reads_pixels
    )
    versions = ImageVersions(usable, settings.run_seed, is_cached=data.latent_cache)
    conditioning: ConditioningSource = NoConditioning()
    if not settings.reads_pixels:
        conditioning = _conditioning_source(data, usable, model, machine, caches, run_seed=settings.run_seed)
    mask_cache = None
    if data.latent_cache and settings.wanted.masks and reads_images:
        mask_cache = cached_masks(
            usable, caches, run_seed=settings.run_seed, verify=data.verify_cache, threads=data.loader_threads
        )
    inpaints = settings.wanted.inpainting
    rules = _mask_rules(masks, inpaints=inpaints, is_validation=is_validation)
    latent_factor = 1 if settings.reads_pixels else caches.encoders.family.spec.latent_factor
    return Loader(
        dataset=usable,
        versions=versions,
        plans=datasets.plans if usable is datasets.training else settings.plans_of(usable, is_validation=is_validation),
        latents=latents,
        conditioning=conditioning,
        device=machine.train_device,
        caption_dropout=caption_dropout,
        draws_captions_anew=not data.text_cache or model.trains_text_encoder,
        run_seed=settings.run_seed,
        threads=data.loader_threads,
        masks=MaskSource(usable, machine.train_device, rules, latent_factor, settings.run_seed, mask_cache)
        if masks.enabled and reads_images and not inpaints
        else None,
        inpainting=_inpainting_source(data, usable, settings.run_seed, rules, latents, mask_cache, machine, caches)
        if inpaints and reads_images
        else None,
        depth=DepthSource(usable, machine.train_device, latent_factor)
        if settings.wanted.depth and reads_images
        else None,
        rejected=RejectedImages(RejectedVersions(versions), rejected) if rejected is not None else None,
        pixels=Pixels(functools.partial(_image_job, usable), machine.train_device) if settings.reads_pixels else None,
        rank=rank,
        in_step=in_step,
    )


def _mask_rules(masks: Masks, *, inpaints: bool, is_validation: bool) -> MaskRules:
    """Return how masks are used. Validation ignores no mask and needs no prior."""
    rules = MaskRules(masks.unmasked_weight, masks.normalize_area_loss)
    if is_validation or not (masks.enabled or inpaints):
        return rules
    return replace(
        rules,
        unmasked_probability=masks.unmasked_probability,
        preservation_weight=masks.prior_preservation_weight,
    )


def _inpainting_source(
    data: Data,
    dataset: Dataset,
    run_seed: int,
    rules: MaskRules,
    images: LatentSource,
    mask_cache: MaskCache | None,
    machine: Machine,
    caches: Caches,
) -> InpaintingSource:
    """Return the inpainting masks and conditioning images of a dataset, cached like the latents (`images`)."""
    device, dtype = machine.train_device, machine.precision.compute_dtype
    latent_factor = caches.encoders.family.spec.latent_factor

    def mask_of(version: ImageVersion) -> MaskFile:
        return inpainting_mask_file(dataset.examples[version.example], version, latent_factor)

    def job_of(version: ImageVersion) -> EncodingJob:
        return conditioning_job(dataset.examples[version.example], version, latent_factor)

    latents: LatentSource = EncodedLatents(job_of, caches.encoders, device, dtype, _warn_once(caches.emit))
    if isinstance(images, CachedLatents):
        jobs = conditioning_jobs(
            ImageVersions(dataset, run_seed, is_cached=True),
            caches.stores.digests,
            image_keys=images.keys,
            mask_keys=mask_cache.keys if mask_cache else {},
            encoder=caches.identities.images,
            latent_factor=latent_factor,
            with_blank=rules.unmasked_probability > 0,
            verify=data.verify_cache,
            check=caches.desk.check,
        )
        caches.build_conditioning_images(jobs.values(), threads=data.loader_threads)
        latents = _cached_latents(jobs, caches, device, dtype)
    return InpaintingSource(latents, MaskReader(mask_of, mask_cache), device, run_seed, rules.unmasked_probability)


def _cached_latents(
    jobs: Mapping[tuple[int, int, int], EncodingJob], caches: Caches, device: Device, dtype: torch.dtype
) -> CachedLatents:
    """Return the cached latents of jobs by example, resolution and variation; broken ones are encoded again."""

    def rebuild(version: ImageVersion) -> torch.Tensor:
        return caches.rebuild_latents(jobs[version.place])

    keys = {place: job.key for place, job in jobs.items()}
    return CachedLatents(caches.stores.latents, keys, device, dtype, rebuild)


def _num_encoders(model: LoadedModel) -> int:
    return len(model.family.spec.names_of("text_encoder"))


def _latent_sources(
    data: Data, run_seed: int, dataset: Dataset, machine: Machine, caches: Caches, *, reads_images: bool
) -> tuple[Dataset, LatentSource, LatentSource | None]:
    """Return the examples that can be used, the source of their latents, and that of their rejected images, if any."""
    if not reads_images:
        spec, dtype = caches.encoders.family.spec, machine.precision.compute_dtype
        return dataset, BlankLatents(spec.latent_channels, spec.latent_factor, machine.train_device, dtype), None
    versions = ImageVersions(dataset, run_seed, is_cached=data.latent_cache)
    rejected = RejectedVersions(versions) if dataset.has_pairs else None
    if not data.latent_cache:
        chosen = _encoded_latents(dataset, machine, caches)
        return dataset, chosen, _encoded_latents(rejected.dataset, machine, caches) if rejected is not None else None
    if dataset.examples:  # without a validation concept, its dataset is empty
        caches.emit(PhaseChanged("scanning", count(len(dataset.examples), "image")))
    sides = [caches.image_jobs(v, verify=data.verify_cache) for v in (versions, rejected) if v is not None]
    broken = caches.build_latents(*sides, threads=data.loader_threads)
    if broken:
        dataset, sides = dataset.without(broken), [_without(jobs, broken) for jobs in sides]
    device, dtype = machine.train_device, machine.precision.compute_dtype
    sources = [_cached_latents(jobs, caches, device, dtype) for jobs in sides]
    return dataset, sources[0], sources[1] if rejected is not None else None


def _image_job(dataset: Dataset, version: ImageVersion) -> EncodingJob:
    return ImageJob("", dataset.examples[version.example].image.path, version.recipe)


def _encoded_latents(dataset: Dataset, machine: Machine, caches: Caches) -> EncodedLatents:
    job_of = functools.partial(_image_job, dataset)
    device, dtype = machine.train_device, machine.precision.compute_dtype
    return EncodedLatents(job_of, caches.encoders, device, dtype, _warn_once(caches.emit))


def _without(jobs: ImageJobs, broken: frozenset[int]) -> ImageJobs:
    """Return the jobs without those of the examples at these indices, renumbered."""
    renumbered = {old: new for new, old in enumerate(sorted({n for n, *_ in jobs} - broken))}
    return {(renumbered[n], r, v): job for (n, r, v), job in jobs.items() if n not in broken}


def texts_to_cache(
    dataset: Dataset, *, text_encoder_trains: bool, trained_tokens: Collection[str] = (), run_seed: int
) -> set[str]:
    """Return the texts of a dataset that are encoded ahead of training, and the empty one; none if none can be.

    Those that contain one of the trained tokens cannot.
    """
    is_cacheable = _is_cacheable(text_encoder_trains, trained_tokens)
    if not dataset.examples or not is_cacheable(""):  # if the empty caption is not cacheable, no caption is
        return set()
    return {"", *(t for e in dataset.examples for t in dataset.texts(e, run_seed=run_seed) if is_cacheable(t))}


def _is_cacheable(text_encoder_trains: bool, trained_tokens: Collection[str]) -> Callable[[str], bool]:
    return functools.partial(
        caption_is_cacheable, text_encoder_trains=text_encoder_trains, trained_tokens=trained_tokens
    )


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
    trained_tokens = model.trained_placeholders
    is_cacheable = _is_cacheable(model.trains_text_encoder, trained_tokens)
    if not data.text_cache:
        encoded = EncodedConditioning(model.family, caches.encoders.caption, device, dtype)
        return ConditioningByCaption(is_cacheable, encoded)
    texts = texts_to_cache(
        dataset, text_encoder_trains=model.trains_text_encoder, trained_tokens=trained_tokens, run_seed=run_seed
    )
    if texts:
        caches.build_text(texts)
    cached = CachedConditioning(
        caches.stores.text, caches.caption_key, model.family, device, dtype, caches.rebuild_text
    )
    return ConditioningByCaption(is_cacheable, cached)
