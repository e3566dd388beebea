"""The length of a LoRA run by its subject and its number of images, and warnings about far too short or long runs."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.data.dataset import Dataset, concept_repeats_of
from modules.data.scan import Watch
from modules.data.subjects import Amount, is_too_long, is_too_short, length_choices
from modules.estimate.passes import count as count_weights
from modules.memory.part_plan import PartPlan
from modules.settings.edit import replace_value
from modules.system.problem import Problem, count
from trainer.data.datasets import dataset_settings, datasets_of
from trainer.data.hub_datasets import with_local_folders
from trainer.preflight.run_budget import Budget

# Below these a run is a toy, of another length.
_MIN_WEIGHTS, _MIN_PIXELS = 100_000_000, 256 * 256


def with_epochs(config: Config, epochs: int) -> Config:
    """Return a config of another length with about as many samples and validations, if they count epochs."""
    times = epochs / config.training.epochs
    for path, every in (("sampling.every", config.sampling.every), ("validation.every", config.validation.every)):
        if every.unit == "epoch" and not every.is_never:
            longer = every.model_copy(update={"n": max(1, round(every.n * times))})
            config = replace_value(config, path, longer)
    return replace_value(config, "training.epochs", epochs)


def find_amount(config: Config, watch: Watch) -> Amount | None:
    """Return the images of a run; None if they cannot be read. `watch` follows the scan and may raise to stop it."""
    try:
        return amount_of(config, datasets_of(with_local_folders(config), watch).training)
    except OSError:
        return None


def amount_of(config: Config, training: Dataset) -> Amount:
    """Return the images of the training concepts, without those that only keep the model as it was."""
    repeats = [float(r.exact_repeats) for r in concept_repeats_of(training.concepts, run_seed=0)]
    concepts = [
        e.concept for e in training.examples if e.image.has_image and training.concepts[e.concept].kind == "training"
    ]
    return Amount(
        len(concepts),
        sum(repeats[concept] for concept in concepts),
        config.training.batch_size * config.training.accumulation_steps,
        dataset_settings(config).plans_of(training).num_steps(0),
    )


def problems_of_subject_length(budget: Budget, training: Dataset) -> Iterator[Problem]:
    """Yield a warning for a new LoRA that sees its images far less or far more often than is usual for any subject."""
    config = budget.config
    is_plain = config.training.method.name == Config().training.method.name and config.training.trains == "adapter"
    if not is_plain or budget.start is not None or _is_toy(budget):
        return
    amount, epochs = amount_of(config, training), config.training.epochs
    views = amount.samples_per_epoch * epochs
    short, long = is_too_short(amount.num_images, views), is_too_long(amount.num_images, views)
    choices = length_choices(amount)
    if not choices or not (short or long):
        return
    usual = sorted(choice.epochs for choice in choices)
    runs = f"{count(amount.steps(epochs), 'step')} with {count(amount.num_images, 'image')}"
    effect = "too few to learn a subject" if short else "so many that the model memorizes the images"
    names = ", ".join(f"{c.subject.label.lower()} {c.epochs:,}" for c in choices)
    yield Problem(
        "training.epochs",
        f"{runs}: each is seen {count(round(views / amount.num_images), 'time')}, probably {effect}.",
        "warning",
        f"Usual are {usual[0]:,} to {usual[-1]:,} epochs for so many images, by subject: {names}.",
        "length",
    )


def _is_toy(budget: Budget) -> bool:
    weights = budget.passes.weights(budget.config.family.denoiser.name, PartPlan()).shapes
    most_pixels = max((width * height for width, height in budget.run.sizes), default=0)
    return count_weights(weights.values()) < _MIN_WEIGHTS or most_pixels < _MIN_PIXELS
