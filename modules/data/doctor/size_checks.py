"""Checks of the sizes of images and of their buckets."""

from __future__ import annotations

from collections.abc import Iterator

from modules.data.buckets import Size
from modules.data.doctor.examined import Examined, ExaminedImage
from modules.data.doctor.finding import CheckSpec, Finding
from modules.system.problem import Severity

MAX_UPSCALING = 1.25  # below, the softness of upscaling can hardly be seen
MAX_ASPECT = 3.0  # base models have seen few images that are longer; their own buckets end at 2 to 4
MAX_CROPPED = 0.2  # of the image: with buckets, most images lose less than 5 %
_FITS_A_BUCKET = "Turn on aspect ratio bucketing, raise the max aspect ratio, or crop the image yourself."
_FITS_THE_SIZE = (
    "Crop the image yourself, choose a size nearer to its shape, or set the resolution as one number and turn on "
    "aspect ratio bucketing."
)
_FILLS_A_BUCKET = "Crop its images to a more frequent size, add similar ones, or raise the repeats."
_FILLS_THE_SIZE = "Add images, raise the repeats, or lower the batch size."
_PARTIAL: dict[str, tuple[str, Severity]] = {
    "keep": ("is trained in smaller batches", "info"),
    "merge": ("waits for the next epochs", "info"),
    "drop": ("is left out of an epoch", "warning"),
}


def _tiny(examined: Examined) -> Iterator[Finding]:
    for image in _with_images(examined):
        size = _size(image)
        fits = examined.fits_of(image)
        scale, bucket, is_fixed = max((f.scaled.width_px / size.width_px, f.bucket, fixed) for f, fixed in fits)
        if scale > MAX_UPSCALING:
            yield Finding(
                "tiny",
                (image.path,),
                f"The image of {size} is smaller than {'the' if is_fixed else 'its'} {_name(bucket, is_fixed)}: it is "
                "upscaled.",
                scale,
                "times upscaled",
                f"Use a larger version of the image, {'choose a smaller size' if is_fixed else 'lower the resolution'}"
                ", or switch on Never upscale.",
            )


def _extreme_aspect(examined: Examined) -> Iterator[Finding]:
    for image in _with_images(examined):
        size = _size(image)
        aspect = max(size.aspect, 1 / size.aspect)
        if aspect > MAX_ASPECT:
            yield Finding(
                "extreme_aspect",
                (image.path,),
                f"The image of {size} is more than {MAX_ASPECT:g} times as long as it is wide or high.",
                aspect,
                ": 1",
                "Cut it into parts or crop it to what matters.",
            )


def _cropped(examined: Examined) -> Iterator[Finding]:
    for image in _with_images(examined):
        if image.example.mask_box is not None:  # it is cropped on purpose
            continue
        fits = examined.fits_of(image)
        lost, bucket, is_fixed = max((_lost(f.scaled, f.bucket), f.bucket, fixed) for f, fixed in fits)
        if lost > MAX_CROPPED:
            yield Finding(
                "bucket_waste",
                (image.path,),
                f"Much of the image of {_size(image)} is cropped away for {'the' if is_fixed else 'its'} "
                f"{_name(bucket, is_fixed)}.",
                lost * 100,
                "% cropped",
                _FITS_THE_SIZE if is_fixed else _FITS_A_BUCKET,
            )


def _small_buckets(examined: Examined) -> Iterator[Finding]:
    for size, samples in sorted(examined.bucket_samples.items()):
        if not 0 < samples < examined.batch_size:
            continue
        inside = [i for i in examined.images if size in _buckets(i) and not examined.is_validation(i)]
        is_fixed = all(fixed for i in inside for fit, fixed in examined.fits_of(i) if fit.bucket == size)
        what, severity = _PARTIAL[examined.partial_batches]
        yield Finding(
            "small_bucket",
            tuple(dict.fromkeys(i.path for i in inside)),
            f"The {_name(size, is_fixed)} has fewer samples per epoch than a batch ({examined.batch_size}), so it "
            f"{what}.",
            samples,
            "sample per epoch" if samples == 1 else "samples per epoch",
            _FILLS_THE_SIZE if is_fixed or len(examined.bucket_samples) == 1 else _FILLS_A_BUCKET,
            severity,
        )


def _with_images(examined: Examined) -> Iterator[ExaminedImage]:
    return (image for image in examined.images if image.example.image.has_image)


def _name(size: Size, is_fixed: bool) -> str:
    return f"{'fixed size' if is_fixed else 'bucket'} {size}"


def _lost(scaled: Size, bucket: Size) -> float:
    return 1 - bucket.width_px * bucket.height_px / (scaled.width_px * scaled.height_px)


def _size(image: ExaminedImage) -> Size:
    return Size(image.example.image.width_px, image.example.image.height_px)


def _buckets(image: ExaminedImage) -> set[Size]:
    return {f.bucket for f in image.example.resize_crops}


TINY = CheckSpec("tiny", "Images that are too small", "Images that are upscaled for training.", _tiny)
EXTREME_ASPECT = CheckSpec("extreme_aspect", "Extreme aspect ratios", "Very long or high images.", _extreme_aspect)
BUCKET_WASTE = CheckSpec("bucket_waste", "Images that lose much to cropping", "Images that fit no bucket.", _cropped)
SMALL_BUCKET = CheckSpec(
    "small_bucket",
    "Buckets with less than a batch",
    "Sizes with too few samples for one batch.",
    _small_buckets,
    compares_concepts=True,
)
