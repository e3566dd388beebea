"""Building the caches and the loaders that deliver batches; caches are filled if they are in use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import chain

import torch

from modules.config.sections.data import Data
from modules.config.sections.masks import Masks
from modules.config.usage import caption_dropout_of
from modules.data.cache.build import ImageFile
from modules.data.captions.drawing import CaptionDropout
from modules.data.captions.seen import ReadCaption, read_alone
from modules.data.captions.sources import caption_is_cacheable
from modules.data.dataset import Dataset
from modules.data.datasets import Datasets
from modules.data.versions import ImageVersion, ImageVersions, RejectedVersions
from modules.system.devices import dtype_of
from modules.system.paths import from_root
from modules.system.problem import count
from modules.system.ranks import ONLY_RANK, Rank
from trainer.commands import CommandDesk
from trainer.data.caching import Caches, Emit, EncoderIdentities, Stores, overflow_warning
from trainer.data.encoders import Encoders
from trainer.data.inputs import InputLoading, cached_latents
from trainer.data.loader import Loader, RejectedImages
from trainer.data.masks import MaskRules, MaskSource, cached_masks
from trainer.data.seen_captions import SeenReferences, seen_references
from trainer.data.sources import (
    BlankLatents,
    CachedConditioning,
    CachedLatents,
    ConditioningByCaption,
    ConditioningSource,
    EncodedConditioning,
    EncodedLatents,
    LatentSource,
    LoadedImages,
    NoConditioning,
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
    dropout = caption_dropout_of(data, model.family.spec.name)
    common = data, masks, datasets
    rest = model, machine, caches
    training = _loader(*common, *rest, is_validation=False, caption_dropout=dropout, rank=rank, in_step=in_step)
    validation = _loader(
        *common, *rest, is_validation=True, caption_dropout=CaptionDropout(), rank=ONLY_RANK, in_step=False
    )
    return Loaders(training, validation)


def _loader(
    data: Data,
    masks: Masks,
    datasets: Datasets,
    model: LoadedModel,
    machine: Machine,
    caches: Caches,
    *,
    is_validation: bool,
    caption_dropout: CaptionDropout,
    rank: Rank,
    in_step: bool,
) -> Loader:
    """Fill the caches for one dataset and return its loader; images that cannot be read are left out.

    If the method learns from prompts, training images are not read.
    """
    settings = datasets.settings
    dataset = datasets.validation if is_validation else datasets.training
    reads_images = is_validation or settings.reads_images
    images = _image_sources(
        data,
        ImageVersions(dataset, settings.run_seed, is_cached=data.latent_cache),
        machine,
        caches,
        reads_images=reads_images and not settings.reads_pixels,
    )
    versions, usable = images.versions, images.versions.dataset
    conditioning: ConditioningSource = NoConditioning()
    seen = seen_references(
        versions,
        settings.wanted.inputs if reads_images else (),
        model.family.spec.seen_with_captions,
        caches.stores.digests if data.text_cache else None,
        verify=data.verify_cache,
        check=caches.desk.check,
        threads=data.loader_threads,
    )
    if not settings.reads_pixels:
        has_dropout = caption_dropout.first > 0
        conditioning = _conditioning_source(
            data, usable, model, machine, caches, run_seed=settings.run_seed, seen=seen, has_dropout=has_dropout
        )
    mask_cache = None
    if data.latent_cache and settings.wanted.masks and reads_images:
        mask_cache = cached_masks(versions, caches, verify=data.verify_cache, threads=data.loader_threads)
    inpaints = settings.wanted.draws_masks
    rules = mask_rules(masks, inpaints=inpaints, is_validation=is_validation)
    are_verified = seen is not None and data.text_cache  # a moment ago, for the captions
    inputs = InputLoading(
        versions,
        caches,
        machine.train_device,
        machine.precision.compute_dtype,
        images.latents.keys if isinstance(images.latents, CachedLatents) else None,
        mask_cache,
        rules.unmasked_probability,
        data.verify_cache and not are_verified,
        data.loader_threads,
        _warn_once(caches.emit),
    )
    latent_factor = 1 if settings.reads_pixels else caches.encoders.family.spec.latents.factor
    keeps_plan = not is_validation and usable is dataset
    return Loader(
        dataset=usable,
        versions=versions,
        plans=datasets.plans if keeps_plan else settings.plans_of(usable, is_validation=is_validation),
        latents=images.latents,
        conditioning=conditioning,
        device=machine.train_device,
        caption_dropout=caption_dropout,
        draws_captions_anew=not data.text_cache or model.trains_text_encoder,
        run_seed=settings.run_seed,
        threads=data.loader_threads,
        masks=MaskSource(usable, machine.train_device, rules, latent_factor, settings.run_seed, mask_cache)
        if masks.enabled and reads_images and not inpaints
        else None,
        inputs=tuple(map(inputs.source, settings.wanted.inputs)) if reads_images else (),
        rejected=RejectedImages(RejectedVersions(versions), images.rejected) if images.rejected is not None else None,
        pixels=LoadedImages(functools.partial(_image_of, usable), machine.train_device, torch.float32)
        if settings.reads_pixels
        else None,
        rank=rank,
        in_step=in_step,
        reads_caption=read_alone if seen is None else seen.read,
    )


def mask_rules(masks: Masks, *, inpaints: bool, is_validation: bool) -> MaskRules:
    """Return how masks are used. Validation ignores no mask and needs no prior."""
    rules = MaskRules(masks.unmasked_weight, masks.normalize_area_loss)
    if is_validation or not (masks.enabled or inpaints):
        return rules
    return replace(
        rules,
        unmasked_probability=masks.unmasked_probability,
        preservation_weight=masks.preservation_weight,
    )


@dataclass(frozen=True, eq=False)
class _ImageSources:
    """The versions of the images that can be used, and the sources of their latents and of their rejected images'."""

    versions: ImageVersions
    latents: LatentSource
    rejected: LatentSource | None = None


def _image_sources(
    data: Data, versions: ImageVersions, machine: Machine, caches: Caches, *, reads_images: bool
) -> _ImageSources:
    """Fill the latent cache, if it is in use, and return the sources of the images that can be used."""
    dataset, device, dtype = versions.dataset, machine.train_device, machine.precision.compute_dtype
    if not reads_images:
        spec = caches.encoders.family.spec
        return _ImageSources(versions, BlankLatents(spec.latents, device, dtype))
    rejected = RejectedVersions(versions) if dataset.has_pairs else None
    if not data.latent_cache:
        chosen = _encoded_latents(dataset, machine, caches)
        of_rejected = _encoded_latents(rejected.dataset, machine, caches) if rejected is not None else None
        return _ImageSources(versions, chosen, of_rejected)
    if dataset.examples:  # without a validation concept, its dataset is empty
        caches.emit(PhaseChanged("scanning", count(len(dataset.examples), "image")))
    sides = [caches.image_keys(v, verify=data.verify_cache) for v in (versions, rejected) if v is not None]
    broken = caches.build_latents(*sides, threads=data.loader_threads)
    if broken:
        versions = replace(versions, dataset=dataset.without(broken))
        sides = [side.without(broken, versions) for side in sides]
    sources = [cached_latents(side.keys, side.job_of, caches, device, dtype) for side in sides]
    return _ImageSources(versions, sources[0], sources[1] if rejected is not None else None)


def _image_of(dataset: Dataset, version: ImageVersion) -> ImageFile:
    return ImageFile(dataset.examples[version.example].image.path, version.recipe)


def _encoded_latents(dataset: Dataset, machine: Machine, caches: Caches) -> EncodedLatents:
    image_of = functools.partial(_image_of, dataset)
    device, dtype = machine.train_device, machine.precision.compute_dtype
    return EncodedLatents(image_of, caches.encoders, device, dtype, _warn_once(caches.emit))


def texts_to_cache(
    dataset: Dataset,
    *,
    text_encoder_trains: bool,
    trained_tokens: Collection[str] = (),
    run_seed: int,
    seen: SeenReferences | None = None,
    has_dropout: bool = False,
) -> Collection[ReadCaption]:
    """Return the texts of a dataset that are encoded ahead of training, and the empty one; none if none can be.

    Each is there once, in the order of its first use, which all processes of a run share.

    Those that contain one of the trained tokens cannot. `seen` are the reference images that are read with each; then
    `has_dropout` adds the empty caption to each image's.
    """
    is_cacheable = _is_cacheable(text_encoder_trains, trained_tokens)
    if not dataset.examples or not is_cacheable(""):  # if the empty caption is not cacheable, no caption is
        return ()
    texts = ("",)
    captions: dict[ReadCaption, None] = dict.fromkeys(texts)
    for number, example in enumerate(dataset.examples):
        of_example = filter(is_cacheable, dataset.texts(example, run_seed=run_seed))
        if seen is None:
            captions.update((text, None) for text in of_example)
        else:
            captions.update((t, None) for t in seen.all_of(chain(of_example, texts if has_dropout else ()), number))
    return captions.keys()


def _is_cacheable(text_encoder_trains: bool, trained_tokens: Collection[str]) -> Callable[[str], bool]:
    return functools.partial(
        caption_is_cacheable, text_encoder_trains=text_encoder_trains, trained_tokens=trained_tokens
    )


def _warn_once(emit: Emit) -> Callable[[list[str]], None]:
    """Return a function that warns about each file once that the VAE cannot encode in its dtype."""
    named: set[str] = set()

    def warn(files: list[str]) -> None:
        fresh = [f for f in files if f not in named]
        named.update(fresh)
        if fresh:
            emit(overflow_warning(fresh))

    return warn


def _conditioning_source(
    data: Data,
    dataset: Dataset,
    model: LoadedModel,
    machine: Machine,
    caches: Caches,
    *,
    run_seed: int,
    seen: SeenReferences | None,
    has_dropout: bool,
) -> ConditioningSource:
    device, dtype = machine.train_device, machine.precision.compute_dtype
    trained_tokens = model.trained_placeholders
    is_cacheable = _is_cacheable(model.trains_text_encoder, trained_tokens)
    if not data.text_cache:
        encoded = EncodedConditioning(model.family, caches.encoders.captions, device, dtype)
        return ConditioningByCaption(is_cacheable, encoded)
    texts = texts_to_cache(
        dataset,
        text_encoder_trains=model.trains_text_encoder,
        trained_tokens=trained_tokens,
        run_seed=run_seed,
        seen=seen,
        has_dropout=has_dropout,
    )
    if texts:
        caches.build_text(texts, threads=data.loader_threads)
    cached = CachedConditioning(
        caches.stores.text, caches.caption_key, model.family, device, dtype, caches.rebuild_text
    )
    return ConditioningByCaption(is_cacheable, cached)
