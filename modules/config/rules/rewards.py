"""The training method: its settings, and the reward models that it needs."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.config.usage import method_of, reports, scorers_of, settings_of_method, trains_on_reward
from modules.rewards.registry import REWARDS
from modules.system.errors import DarkroomError
from modules.system.problem import Problem


def method_settings(config: Config) -> Iterator[Problem]:
    """Yield the problems that the method's record finds in its settings, and an error for dropout that it forbids."""
    method = method_of(config)
    yield from method.problems(settings_of_method(config))
    if not method.repeats_forward or config.training.trains != "adapter":
        return
    for name in ("dropout", "rank_dropout", "module_dropout"):
        if (dropout := getattr(config.adapter, name, 0.0)) > 0:
            yield Problem(
                f"adapter.{name}",
                f"{method.label} compares the model's predictions with those that sampled the images; a "
                f"{name.replace('_', ' ')} of {dropout:g} would change them at random.",
                advice="Set it to 0.",
            )


def masked_training(config: Config) -> Iterator[Problem]:
    """Yield a warning if masked training is on with a method that also trains on sampled images, without masks.

    A method that trains on nothing else does not use the setting at all (`settings_without_effect`).
    """
    method = method_of(config)
    share = method.sampled_share(settings_of_method(config)) if method.samples_images else 0.0
    if not config.masks.enabled or share in (0, 1):
        return
    yield Problem(
        "masks.enabled",
        f"{method.label} trains on images that it samples, for which there are no masks. Masked training only affects "
        f"the denoising steps, {1 - share:.0%} of all.",
        "warning",
        "Switch off masked training, or choose another training method.",
    )


def reward_models(config: Config) -> Iterator[Problem]:
    """Yield problems if there is no reward model to train on, the method cannot use it, or its settings are invalid."""
    in_use, method = scorers_of(config), method_of(config)
    if in_use is None:
        return
    if not in_use.trained and trains_on_reward(config):
        yield Problem(
            "reward.models",
            f"{method.label} needs a reward model to train on.",
            advice="Add a reward model with a weight above 0 that is not the held-out reward.",
        )
    scorers, held_out = config.reward.models, in_use.held_out
    for index, scorer in enumerate(scorers):
        if scorer not in in_use.all:
            continue
        path, spec = f"reward.models.{index}", REWARDS[scorer.kind]
        if scorer != held_out and method.needs_reward_gradient and not spec.is_differentiable:
            message = f"{method.label} needs gradients, which {spec.label} does not have."
            yield Problem(f"{path}.kind", message, advice="Choose another reward model, or hold this one out.")
        for name, check in spec.checks.items():
            try:
                check(getattr(scorer, name))
            except DarkroomError as error:
                yield Problem(f"{path}.{name}", error.message, advice=error.advice)
    if held_out is None or held_out in scorers:
        return
    spec = REWARDS[held_out.kind]
    if spec.runs_code or spec.client:
        message = f'The held-out reward is "{spec.label}", but the reward models contain none.'
        yield Problem("training.method.held_out_reward", message, advice="Add it to the reward models and set it up.")


def reward_limits(config: Config) -> Iterator[Problem]:
    """Yield settings that need reward measurements, or metrics of the method, which do not exist."""
    method, settings, in_use = method_of(config), config.reward, scorers_of(config)
    if not method.needs_reward_models:
        return
    has_no_reward = in_use is not None and not in_use.all and not trains_on_reward(config)
    for name, label, is_on in (
        ("early_stopping_patience", "Early stopping", settings.early_stopping_patience > 0),
        ("keep_best", "Keeping the best checkpoint", settings.keep_best),
        ("stop_at_reward", "Stop at reward", settings.stop_at_reward is not None),
        ("min_diversity", "Min diversity", settings.min_diversity is not None and not reports(config, "diversity")),
    ):
        if is_on and settings.measure_every.is_never:
            yield Problem(
                f"reward.{name}",
                f"{label} depends on measurements of the reward, but the reward is never measured.",
                advice="Set how often the reward is measured, or switch this off.",
            )
        elif is_on and has_no_reward:
            yield Problem(
                f"reward.{name}",
                f"{label} depends on measurements of the reward, but a person chooses and there is no reward model.",
                "warning",
                "Set a held-out reward, or switch this off.",
            )
    if settings.max_kl is not None and not method.needs_reward_gradient and not reports(config, "kl"):
        yield Problem(
            "reward.max_kl",
            f"Max KL is set, but {method.label} does not compute the KL to the reference with its settings.",
            advice="Set the method's KL weight above 0, or leave Max KL empty.",
        )
    both = (settings, config.validation)
    if all(s.keep_best and s.result == "best" for s in both):
        yield Problem(
            "reward.result",
            "The result can be the best model by reward or by validation, not both.",
            advice="Set the result of one of them to the last step.",
        )
