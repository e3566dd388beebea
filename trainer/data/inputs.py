"""The further inputs of a model (`ModelInput`) on their way into a batch: from their caches, or read at each use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import torch

from modules.data.buckets import LatentFactor
from modules.data.cache.build import EncodingJob, LoadableImage
from modules.data.cache.digests import DigestedFile, DigestIndex
from modules.data.cache.inputs import BLANK, KnownKeys, inpainting_mask, inpainting_mask_file, reader_of
from modules.data.cache.masks import MaskFile
from modules.data.cache.version_keys import Place
from modules.data.companions import Companion
from modules.data.inputs import ModelInput
from modules.data.samples import SampleIndex
from modules.data.versions import ImageVersion, ImageVersions
from modules.system.devices import Device, move_async
from trainer.data.caching import Caches
from trainer.data.masks import MaskCache, MaskReader, ignores_mask
from trainer.data.sources import CachedLatents, EncodedLatents, LatentSource, LoadedImages, Prepared


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """The version of an image for an input, `BLANK` if the use ignores its mask, and the data read ahead of time.

    `is_absent`: the image has no such input, nor has any other of its batch.
    """

    version: ImageVersion
    value: Prepared
    is_absent: bool = False


@dataclass(frozen=True, eq=False)
class InputSource:
    """Delivers one input of the model, by its name.

    With the probability `unmasked_probability` a use of an image gets a blank one: the same uses ignore their mask in
    the loss (`MaskSource`). `owners` are the examples that have the input; None for all.
    """

    name: str
    values: LatentSource
    run_seed: int
    unmasked_probability: float = 0.0
    owners: frozenset[int] | None = None

    def prepare(self, version: ImageVersion, sample: SampleIndex) -> PreparedInput:
        """Read the input of a sample, as far as that needs no model.

        Raises OSError, ValueError or SyntaxError for a file that cannot be decoded.
        """
        if ignores_mask(self.run_seed, sample, probability=self.unmasked_probability):
            version = replace(version, variation=BLANK)
        if self.owners is not None and version.example not in self.owners:
            return PreparedInput(version, None, is_absent=True)
        return PreparedInput(version, self.values.prepare(version))

    def deliver(self, prepared: Sequence[PreparedInput]) -> torch.Tensor | None:
        """Return the input of a batch, on the training device, in the dtype of its latents; None if it has none."""
        if any(p.is_absent for p in prepared):
            return None
        return self.values.deliver([p.version for p in prepared], [p.value for p in prepared])


@dataclass(frozen=True, eq=False)
class InpaintingMasks:
    """Delivers the masks of the latents that are inpainted."""

    masks: MaskReader
    device: Device
    dtype: torch.dtype

    def prepare(self, version: ImageVersion) -> Prepared:
        """Return a mask, float32 (1, H, W), or None if its entry is broken. Raises OSError for an unreadable file."""
        return self.masks.read(version)

    def deliver(self, versions: Sequence[ImageVersion], prepared: Sequence[Prepared]) -> torch.Tensor:
        """Return the masks of versions of one size, (B, 1, H, W), 1 for the latents that are inpainted, else 0."""
        masks = [self.masks.rebuild(v) if p is None else p for v, p in zip(versions, prepared, strict=True)]
        return move_async(torch.stack([inpainting_mask(m) for m in masks]).to(self.dtype), self.device)


@dataclass(frozen=True, eq=False)
class InputLoading:
    """The parts of a run from which the sources of a dataset's inputs are made.

    `image_keys` are the keys of the cached latents of its images; None without a latent cache.
    """

    versions: ImageVersions
    caches: Caches
    device: Device
    dtype: torch.dtype
    image_keys: Mapping[Place, str] | None
    masks: MaskCache | None
    unmasked_probability: float
    verify: bool
    threads: int
    warn: Callable[[list[str]], None]

    def source(self, record: ModelInput) -> InputSource:
        """Return the source of an input; its cache is filled if there is a latent cache."""
        probability = self.unmasked_probability if record.follows_mask else 0.0
        owners = frozenset(files_of(record, self.versions)) if record.reference else None
        return InputSource(record.name, self._values(record), self.versions.run_seed, probability, owners)

    def _values(self, record: ModelInput) -> LatentSource:
        examples, latent_factor = self.versions.dataset.examples, self.caches.encoders.family.spec.latents.factor
        if record.delivery == "mask":

            def file_of(version: ImageVersion) -> MaskFile:
                return inpainting_mask_file(examples[version.example], version, latent_factor)

            return InpaintingMasks(MaskReader(file_of, self.masks), self.device, self.dtype)
        reader = reader_of(record, latent_factor)

        def image_of(version: ImageVersion) -> LoadableImage:
            return reader.image(examples[version.example], version)

        if record.delivery == "values":
            return LoadedImages(image_of, self.device, self.dtype)
        if self.image_keys is None:
            return EncodedLatents(image_of, self.caches.encoders, self.device, self.dtype, self.warn)
        jobs = input_jobs(
            record,
            self.versions,
            self.caches.stores.digests,
            image_keys=self.image_keys,
            mask_keys=self.masks.keys if self.masks else {},
            encoder=self.caches.identities.images,
            latent_factor=latent_factor,
            with_blank=record.follows_mask and self.unmasked_probability > 0,
            verify=self.verify,
            check=self.caches.desk.check,
            threads=self.threads,
        )
        self.caches.build_input(record, jobs.values(), threads=self.threads)
        keys = {place: job.key for place, job in jobs.items()}
        return cached_latents(keys, lambda version: jobs[version.place], self.caches, self.device, self.dtype)


def cached_latents(
    keys: Mapping[Place, str],
    job_of: Callable[[ImageVersion], EncodingJob],
    caches: Caches,
    device: Device,
    dtype: torch.dtype,
) -> CachedLatents:
    """Return the cached latents of versions by their keys; broken ones are encoded again, by their jobs."""

    def rebuild(version: ImageVersion) -> torch.Tensor:
        return caches.rebuild_latents(job_of(version))

    return CachedLatents(caches.stores.latents, keys, device, dtype, rebuild)


def input_jobs(
    record: ModelInput,
    versions: ImageVersions,
    digests: DigestIndex,
    *,
    image_keys: Mapping[Place, str],
    mask_keys: Mapping[Place, str],
    encoder: str,
    latent_factor: LatentFactor,
    with_blank: bool,
    verify: bool,
    check: Callable[[], None],
    threads: int = 1,
) -> dict[Place, EncodingJob]:
    """Return the encoding jobs of an input of a dataset's images by example, resolution and variation.

    `image_keys` and `mask_keys` are the keys of the versions' latents and mask files, `encoder` is the VAE's identity.
    `with_blank` adds the blank ones of uses that ignore the mask. `check` is called for each file and may raise to
    stop; `threads` read ahead.
    """
    files = files_of(record, versions)
    file_digests: dict[int, str] = {}
    with closing(digests.digests(files.values(), threads=threads, verify=verify)) as results:
        for number, digest in zip(files, results, strict=True):
            check()
            file_digests[number] = digest
    reader, known = reader_of(record, latent_factor), KnownKeys(image_keys, mask_keys, file_digests, encoder)
    jobs: dict[Place, EncodingJob] = {}
    for version in _with_blank(versions) if with_blank else versions.all_versions():
        if record.reference and version.example not in files:
            continue
        example = versions.dataset.examples[version.example]
        key, image = reader.key(example, version, known), reader.image(example, version)
        file = files.get(version.example)
        digested = () if file is None else (DigestedFile(file, file_digests[version.example]),)
        jobs[version.place] = EncodingJob(key, image, digested)
    return jobs


def files_of(record: ModelInput, versions: ImageVersions) -> dict[int, Companion]:
    """Return the files of an input by example, of those that have one."""
    examples = enumerate(versions.dataset.examples)
    return {n: file for n, e in examples if (file := e.input_files.get(record.name)) is not None}


def _with_blank(versions: ImageVersions) -> Iterator[ImageVersion]:
    for version in versions.all_versions():
        yield version
        if version.variation == 0:
            yield replace(version, variation=BLANK)
