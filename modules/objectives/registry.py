"""The training methods: the list of all, and the standard one's record. Factories are imported when a run begins."""

from collections.abc import Mapping
from typing import Literal

from modules.objectives.methods import alignprop, ddpo, dgpo, dpo, grpo, nft, online_dpo, reconstruction
from modules.objectives.spec import MethodSpec, MethodStart
from modules.settings.field import Section


class Denoise(Section):
    """The standard method: predict the noise in noisy images (Ho et al. 2020)."""

    name: Literal["denoise"] = "denoise"


DENOISE = MethodSpec(
    "denoise",
    "Denoising",
    "Learns to remove noise from your images: the standard method.",
    Denoise,
    "trainer.methods.denoise:build",
    has_denoising_loss=lambda settings: True,
    trains_embeddings=True,
    is_shareable=lambda settings: True,
    is_recordable=True,
    sources={"images": MethodStart("A person, an object or a style needs 10 to 100 of them.", is_usual=True)},
)


METHODS: Mapping[str, MethodSpec] = {
    spec.name: spec
    for spec in (
        DENOISE,
        alignprop.SPEC,
        dpo.SPEC,
        online_dpo.SPEC,
        ddpo.SPEC,
        grpo.SPEC,
        nft.SPEC,
        dgpo.SPEC,
    )
}

METHODS_OF_TARGETS: Mapping[str, MethodSpec] = {"vae": reconstruction.SPEC}
"""The methods of training targets that cannot be trained by the others, by the target. Its settings are
`training.<target>`.
"""


def method_help() -> Mapping[str, str]:
    """Return a sentence for each method, by its name."""
    return {name: spec.help for name, spec in METHODS.items()}


def method_labels() -> Mapping[str, str]:
    """Return the methods' labels by name."""
    return {name: spec.label for name, spec in METHODS.items()}


def reward_methods() -> tuple[str, ...]:
    """Return the names of the methods that need reward models."""
    return tuple(name for name, spec in METHODS.items() if spec.needs_reward_models)


def policy_methods() -> tuple[str, ...]:
    """Return the names of the methods that train on the scores of their samples, without a gradient of the reward."""
    return tuple(name for name, spec in METHODS.items() if spec.needs_reward_models and not spec.needs_reward_gradient)
