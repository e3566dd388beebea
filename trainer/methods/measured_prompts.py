"""The prompts for measuring the reward, and whether they are trained on."""

from __future__ import annotations

from itertools import islice

from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.config.usage import rollout_of, seeds_per_measured_prompt
from modules.data.dataset import Dataset


def measured_prompts(config: Config, validation: Dataset, training: Dataset) -> tuple[SamplePrompt, ...]:
    """Return the fixed prompts for measuring the reward: the enabled sample prompts; without any, captions of the
    validation images, or else of the training images. Prompts are repeated with other seeds up to the number of images
    in the settings; fewer prompts are used where the diversity needs several images of each.
    """
    prompts = [p for p in config.sampling.prompts if p.enabled]
    if not prompts:
        prompts = _captions(config, validation) or _captions(config, training)
    seeds = seeds_per_measured_prompt(config)
    prompts = prompts[: max(1, config.reward.num_images // seeds)] if seeds > 1 else prompts
    count = max(config.reward.num_images, seeds) if prompts else 0
    rounds = (divmod(i, len(prompts)) for i in range(count))
    return tuple(prompts[i].model_copy(update={"seed": (prompts[i].seed + r) % 2**63}) for r, i in rounds)


def trained_prompts(config: Config, validation: Dataset, training: Dataset) -> tuple[str, ...]:
    """Return the measured prompts that are captions of the training images, each once, as they are written."""
    trained = {caption.strip() for example in training.examples for caption in example.image.captions}
    measured = dict.fromkeys(p.prompt.strip() for p in measured_prompts(config, validation, training))
    return tuple(prompt for prompt in measured if prompt in trained)


def _captions(config: Config, dataset: Dataset) -> list[SamplePrompt]:
    """Return a prompt per caption of a dataset, up to the number of images, with the method's sampling settings."""
    rollout = rollout_of(config)
    assert rollout is not None  # reward models score what the method samples
    prompts: dict[str, SamplePrompt] = {}
    for example in dataset.examples:
        size = example.resize_crops[0].bucket
        for caption in filter(None, islice(dataset.texts(example, run_seed=config.general.seed), 1)):
            prompts.setdefault(
                caption,
                SamplePrompt(
                    prompt=caption,
                    width_px=size.width_px,
                    height_px=size.height_px,
                    seed=len(prompts),
                    steps=rollout.steps,
                    guidance=rollout.guidance,
                ),
            )
    return list(prompts.values())[: config.reward.num_images]
