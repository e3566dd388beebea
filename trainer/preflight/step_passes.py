"""What an optimizer step costs, for methods whose steps are longer than a denoising step, and a person, in words."""

from __future__ import annotations

from modules.config.method_facts import learns_from, rollout_of, step_passes, trains_on_reward
from modules.config.schema import Config
from modules.data.plans import EpochPlans
from modules.system.problem import count


def describe_passes(config: Config) -> str:
    """Return the passes of a step and how many denoising steps take as long; empty for a method that only denoises."""
    if rollout_of(config) is None and learns_from(config) != "pairs":
        return ""
    passes = step_passes(config)
    denoiser = next(p.label for p in config.family.parts if p.role == "denoiser")
    times = passes.times_denoising(config.training.batch_size * config.training.accumulation_steps)
    sampled = f" samples {count(round(passes.num_sampled), 'image')} and" if passes.num_sampled >= 1 else ""
    return (
        f"A step{sampled} passes {_number(passes.without_gradient)} images through the {denoiser} without gradient and "
        f"{_number(passes.with_gradient)} with it, which takes about {_number(times)} times as long as a "
        "step of the method Denoising."
    )


def describe_choices(config: Config, plans: EpochPlans) -> str:
    """Return how many choices a person makes; empty for a run without choices by a person."""
    if rollout_of(config) is None or trains_on_reward(config):
        return ""
    num_choices = sum(len(batch) for group in plans.accumulation_groups(0) for batch in group)
    epochs = config.training.epochs
    whole = "" if epochs == 1 else f" of the first of {count(epochs, 'epoch')}"
    return f"You make {count(num_choices, 'choice')}, one for each prompt{whole}."


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"
