"""Sizes, concepts, sample prompts and validation, without reading any folder."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.config.usage import data_in_use, learns_from
from modules.data.buckets import BucketRules, Size
from modules.data.decode import colour_of
from modules.data.image_settings import STRENGTH_OF, is_random
from modules.settings.every import Moment
from modules.settings.shared_types import sides_of
from modules.system.problem import Problem, quote

NAMES_OF_ZERO = {"repeats": "repeats", "samples_per_epoch": "samples per epoch"}


def sizes(config: Config) -> Iterator[Problem]:
    """Yield problems with sizes that are not multiples of what the family and the bucket step require."""
    spec = config.family
    if config.data.bucket_step_px % spec.size_step_px:
        yield Problem(
            "data.bucket_step_px",
            f"The bucket step of {config.data.bucket_step_px} px does not work with {spec.label}.",
            advice=f"Use a multiple of {spec.size_step_px}.",
        )
    fixed = (config.data.fixed_width_px, config.data.fixed_height_px)
    if any(fixed) and not all(fixed):
        yield Problem(
            f"data.fixed_{'height' if fixed[0] else 'width'}_px",
            "A fixed size needs both a width and a height.",
            advice="Set both, or set both to 0.",
        )
    yield from _resolutions(config.data.resolution_px, "data.resolution_px", config)
    for index, concept in enumerate(config.concepts):
        if concept.enabled:
            path = f"concepts.{index}.image.resolution_px"
            yield from _resolutions(concept.image.resolution_px, path, config)


def _resolutions(given: tuple[int | str, ...], path: str, config: Config) -> Iterator[Problem]:
    data, step_px = config.data, config.data.bucket_step_px
    ratios = data.bucket_aspect_ratios
    for resolution in given:
        if isinstance(resolution, str) and any(side % step_px for side in sides_of(resolution)):
            rounded = Size(*(max(step_px, side // step_px * step_px) for side in sides_of(resolution)))
            message = f"{resolution} is not a multiple of the bucket step of {step_px} px; images will be {rounded}."
            yield Problem(path, message, "warning", f"Use {rounded}.")
        elif isinstance(resolution, int) and resolution % step_px:
            squares = BucketRules((resolution,), step_px, 1.0, data.aspect_ratio_bucketing, aspect_ratios=ratios)
            [[square]] = squares.sizes()
            lower_px = max(1, resolution // step_px) * step_px
            yield Problem(
                path,
                f"{resolution} px is not a multiple of the bucket step of {step_px} px; "
                f"square images will be {square.width_px} px.",
                "warning",
                f"Use {lower_px} or {lower_px + step_px}.",
            )


def concepts(config: Config) -> Iterator[Problem]:
    """Yield problems if there is nothing to train on, or no image to validate on while validation is on."""
    active = [c for c in config.concepts if c.enabled]
    kinds = [c.kind for c in active]
    if learns_from(config) != "pairs" and "training" not in kinds and "prompts" not in kinds:  # see `pairs`
        what = "prompts or images" if learns_from(config) == "prompts" else "images"
        yield Problem(
            "concepts",
            f"There are no {what} to train on.",
            advice="Add a concept on the Concepts page and choose its folder.",
        )
    for index, concept in enumerate(config.concepts):
        if concept.enabled and colour_of(concept.background) is None:
            yield Problem(
                f"concepts.{index}.background",
                f"{quote(concept.background)} is not a colour.",
                advice="Enter a name such as white, or a hexadecimal value such as #808080.",
            )
        if concept.enabled and concept.dataset_kind == "training" and concept.zero_field:
            what, used = NAMES_OF_ZERO[concept.zero_field], "images" if concept.has_images else "prompts"
            yield Problem(
                f"concepts.{index}.{concept.zero_field}",
                f"The concept {concept.label_at(index)} has 0 {what}: its {used} are never used.",
                "warning",
                f"Raise the {what} or disable the concept.",
            )
    if not config.validation.every.is_never and not any(c.dataset_kind == "validation" for c in active):
        yield Problem(
            "validation.every",
            "Validation is on, but there is no validation concept.",
            advice="Set the concept type of a concept to Validation, or switch validation off.",
        )


def augmentations(config: Config) -> Iterator[Problem]:
    """Yield a warning for each augmentation of strength 0, and for random ones that are drawn once for a whole run."""
    reads_images = learns_from(config) != "prompts"
    is_repeated = data_in_use(config).latent_cache and config.training.epochs > 1
    for index, concept in enumerate(config.concepts):
        if not concept.has_images or (concept.dataset_kind == "training" and not reads_images):
            continue
        label = concept.label_at(index)
        for name, strength in STRENGTH_OF.items():
            is_on = concept.enabled and getattr(concept.image, name) != "off"
            if is_on and getattr(concept.image, strength) == 0:
                yield Problem(
                    f"concepts.{index}.image.{strength}",
                    f"{name.capitalize()} is on for the concept {label}, but its strength is 0: it changes nothing.",
                    "warning",
                    f"Raise the strength, or switch {name} off.",
                )
        is_trained = concept.enabled and concept.dataset_kind == "training"
        if is_repeated and is_trained and concept.image_variations == 1 and is_random(concept.image):
            yield Problem(
                f"concepts.{index}.image_variations",
                f"The concept {label} has random augmentations, but 1 image variation is cached: every epoch trains "
                "the same one of each image.",
                "warning",
                "Raise Image variations, or switch latent caching off.",
            )


def samples(config: Config) -> Iterator[Problem]:
    """Yield a note if sampling is on without a prompt."""
    sampling = config.sampling
    is_wanted = not sampling.every.is_never or sampling.at_start or sampling.at_end
    if is_wanted and not any(p.enabled for p in sampling.prompts):
        yield Problem("sampling.prompts", "There are no sample prompts, so no samples will be generated.", "info")


# Validation: the settings that depend on it can take effect.


def validation(config: Config) -> Iterator[Problem]:
    """Yield problems with settings that need validation: it must be on, have images, and run often enough.

    Validations by epoch are counted here; by step that needs the images, and by time it is unknown before the run.
    """
    settings = config.validation
    if settings.every.is_never:
        yield from _without_validation(config)
        return
    yield from _concepts_without_repeats(config)
    if settings.every.unit == "epoch":
        end = Moment(step=0, epoch=config.training.epochs, seconds=0.0)
        yield from too_few_validations(config, settings.every.times(end))


def too_few_validations(config: Config, num_validations: int) -> Iterator[Problem]:
    """Yield problems caused by too few validations, not counting those before the first step."""
    settings = config.validation
    if num_validations == 0:
        yield Problem(
            "validation.every",
            f"The run ends before the first validation, {settings.every}: "
            + ("no best checkpoint can be kept." if settings.keep_best else "nothing is measured after the start."),
            "error" if settings.keep_best and settings.result == "best" else "warning",
            "Validate more often.",
        )
    elif settings.early_stopping_patience >= num_validations:
        times = f"{num_validations:,} times" if num_validations > 1 else "once"
        yield Problem(
            "validation.early_stopping_patience",
            f"Early stopping needs {settings.early_stopping_patience:,} validations without a new best after the "
            f"first one, but the run validates only {times}: it never stops early.",
            "warning",
            "Lower it, validate more often, or set it to 0.",
        )


def _without_validation(config: Config) -> Iterator[Problem]:
    settings = config.validation
    for name, is_on, effect in (
        ("result", settings.keep_best and settings.result == "best", "The best checkpoint becomes the result"),
        ("early_stopping_patience", settings.early_stopping_patience > 0, "The run stops early"),
    ):
        if is_on:
            yield Problem(
                f"validation.{name}",
                f"{effect} by the validation loss, but validation is off.",
                advice="Set how often to validate, or switch this off.",
            )


def _concepts_without_repeats(config: Config) -> Iterator[Problem]:
    concepts = [(i, c) for i, c in enumerate(config.concepts) if c.enabled and c.dataset_kind == "validation"]
    for index, concept in concepts:
        if concept.zero_field:
            is_all = all(c.zero_field for _, c in concepts)
            what = NAMES_OF_ZERO[concept.zero_field]
            yield Problem(
                f"concepts.{index}.{concept.zero_field}",
                f"The validation concept {concept.label_at(index)} has 0 {what}: its images are never "
                f"measured{', and there is no other' if is_all else ''}.",
                "error" if is_all else "warning",
                f"Raise its {what}, or disable the concept.",
            )
