"""The training methods, one line each. Torch-free: the factories are named and imported when a run begins."""

from __future__ import annotations

from collections.abc import Mapping

from modules.objectives.methods import alignprop, ddpo, denoise, dpo, grpo, online_dpo, reconstruction
from modules.objectives.spec import MethodSpec

METHODS: Mapping[str, MethodSpec] = {
    spec.name: spec
    for spec in (
        denoise.SPEC,
        alignprop.SPEC,
        dpo.SPEC,
        online_dpo.SPEC,
        ddpo.SPEC,
        grpo.SPEC,
    )
}

METHODS_OF_TARGETS: Mapping[str, MethodSpec] = {"vae": reconstruction.SPEC}
"""The methods of training targets that have one of their own, by the target. Its settings are `training.<target>`."""


def method_labels() -> Mapping[str, str]:
    """Return the methods' labels by name."""
    return {name: spec.label for name, spec in METHODS.items()}


def reward_methods() -> tuple[str, ...]:
    """Return the names of the methods that need reward models."""
    return tuple(name for name, spec in METHODS.items() if spec.needs_reward_models)


def policy_methods() -> tuple[str, ...]:
    """Return the names of the methods that train on the scores of their samples, without a gradient of the reward."""
    return tuple(name for name, spec in METHODS.items() if spec.needs_reward_models and not spec.needs_reward_gradient)
