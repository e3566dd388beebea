"""The images of a run and the plan of its epochs, made in one place for the check and for the run itself."""

from __future__ import annotations

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.dataset import BucketRules, Dataset, EpochPlans, build_dataset
from modules.system.paths import from_root


def datasets_of(config: Config) -> tuple[Dataset, Dataset]:
    """Return the training and the validation images of a config. Raises OSError for a folder that is not there."""
    data = config.data
    is_fixed = data.fixed_width_px > 0 and data.fixed_height_px > 0
    rules = BucketRules(
        data.resolution_px,
        data.bucket_step_px,
        data.max_aspect_ratio,
        data.aspect_ratio_bucketing,
        Size(data.fixed_width_px, data.fixed_height_px) if is_fixed else None,
    )
    located = [(c, from_root(c.path)) for c in config.concepts if c.enabled]
    return build_dataset(located, "training", rules), build_dataset(located, "validation", rules)


def plans_of(config: Config, training: Dataset) -> EpochPlans:
    """Return the plan of every epoch of a config over its training images."""
    return EpochPlans(
        training,
        batch_size=config.training.batch_size,
        accumulation_steps=config.training.accumulation_steps,
        run_seed=config.general.seed,
    )
