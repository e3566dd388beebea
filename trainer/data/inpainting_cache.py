"""The cache of the conditioning images of a run: their keys, and filling it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from modules.data.cache.build import EncodingJob
from modules.data.cache.inpainting import BLANK, conditioning_job, conditioning_key
from modules.data.cache.key import DigestIndex
from modules.data.versions import ImageVersion, ImageVersions

Place = tuple[int, int, int]


def conditioning_jobs(
    versions: ImageVersions,
    digests: DigestIndex,
    *,
    image_keys: Mapping[Place, str],
    mask_keys: Mapping[Place, str],
    encoder: str,
    latent_factor: int,
    with_blank: bool,
    verify: bool,
    check: Callable[[], None],
) -> dict[Place, EncodingJob]:
    """Return the encoding jobs of a dataset's conditioning images by example, resolution and variation.

    `image_keys` and `mask_keys` are those of the versions' latents and mask files, `encoder` is the identity of the
    VAE. `with_blank` adds the blank ones of uses that ignore the mask. `check` is called for each image and may raise
    to stop.
    """
    custom_digests: dict[int, str] = {}
    for number, example in enumerate(versions.dataset.examples):
        check()
        if (custom := example.conditioning_image) is not None:
            custom_digests[number] = digests.digest(
                custom.path, size_bytes=custom.size_bytes, mtime_ns=custom.mtime_ns, verify=verify
            )
    digests.save()
    jobs: dict[Place, EncodingJob] = {}
    for version in _with_blank(versions) if with_blank else versions.cached():
        example = versions.dataset.examples[version.example]
        key = conditioning_key(
            example,
            version,
            image_keys=image_keys,
            mask_keys=mask_keys,
            custom_digest=custom_digests.get(version.example, ""),
            encoder=encoder,
        )
        jobs[version.place] = conditioning_job(example, version, latent_factor, key=key)
    return jobs


def _with_blank(versions: ImageVersions) -> Iterator[ImageVersion]:
    for version in versions.cached():
        yield version
        if version.variation == 0:
            yield replace(version, variation=BLANK)
