"""The training methods, one line each, the standard one first. Their records are imported when they are read first, the
factories when a run begins.
"""

from collections.abc import Mapping

from modules.objectives.methods.reconstruction import RECONSTRUCTION
from modules.objectives.spec import MethodSpec
from modules.settings.lazy_variants import LazyRecords

METHODS: Mapping[str, MethodSpec] = LazyRecords(
    "modules.objectives.methods",
    {
        "denoise": "denoise",
        "alignprop": "alignprop",
        "dpo": "dpo",
        "online_dpo": "online_dpo",
        "ddpo": "ddpo",
        "grpo": "grpo",
        "nft": "nft",
        "dgpo": "dgpo",
    },
)

METHODS_OF_TARGETS: Mapping[str, MethodSpec] = {"vae": RECONSTRUCTION}
"""The methods of training targets that cannot be trained by the others, by the target. Its settings are
`training.<target>`.
"""


def reward_methods() -> tuple[str, ...]:
    """Return the names of the methods that need reward models."""
    return tuple(name for name, spec in METHODS.items() if spec.needs_reward_models)


def policy_methods() -> tuple[str, ...]:
    """Return the names of the methods that train on the scores of their samples, without a gradient of the reward."""
    return tuple(name for name, spec in METHODS.items() if spec.needs_reward_models and not spec.needs_reward_gradient)
