"""The arguments of an optimizer's constructor, from its settings, and the settings of OneTrainer that do not exist
here. A setting is the argument of its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

_NOT_ARGUMENTS = ("name", "fused_back_pass")
_GROUPING = "muon_"
"""The prefix of settings that divide the weights into groups (`modules/optim/classes/muon.py`)."""
_NAMES = {"decoupled_decay": "weight_decouple", "quant_block_size": "block_size"}
_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "growth_rate": lambda limit: math.inf if limit is None else limit,
    "optim_bits": int,
    "orthogonal_gradient": lambda is_on: "flattened" if is_on else "disabled",  # adv-optm's modes
}


def by_name(
    names: Mapping[str, str] | None = None,
    *,
    num_betas: int = 2,
    without: Collection[str] = (),
    more: Callable[[Any], Mapping[str, Any]] | None = None,
) -> Callable[[Any], dict[str, Any]]:
    """Return the `arguments` function of an optimizer whose constructor has an argument for each setting.

    `names` are arguments that have other names than their settings. The first `num_betas` betas are one argument, and
    so are two epsilons. Settings in `without` are not arguments; `more(settings)` adds arguments or replaces them.
    """
    renamed = _NAMES | dict(names or {})
    betas = [f"beta{number}" for number in range(1, num_betas + 1)]

    def arguments_of(settings: Any) -> dict[str, Any]:
        fields = [f for f in type(settings).model_fields if f not in _NOT_ARGUMENTS and f not in without]
        values = {f: getattr(settings, f) for f in fields if not f.startswith(_GROUPING)}
        arguments: dict[str, Any] = {}
        if all(beta in values for beta in betas):
            arguments["betas"] = tuple(values.pop(beta) for beta in betas)
        if "eps2" in values:
            arguments["eps"] = values.pop("eps"), values.pop("eps2")
        arguments |= {renamed.get(f, f): _VALUES[f](value) if f in _VALUES else value for f, value in values.items()}
        return arguments | dict(more(settings) if more else {})

    return arguments_of


# Settings of OneTrainer's optimizers that do not exist here: why, and which of their values change nothing.


@dataclass(frozen=True, slots=True)
class RemovedSetting:
    """A setting that does not exist here.

    Files may contain it: a value of `harmless` is dropped silently, any other with a note that ends in `why`.
    """

    harmless: tuple[bool | int | float | str, ...]
    why: str


CAPTURABLE = RemovedSetting((False,), "steps are not recorded in CUDA graphs.")
DIFFERENTIABLE = RemovedSetting((False,), "no gradient flows through an optimizer step.")
SHARDED = RemovedSetting((False,), "the weights are never sharded.")
LOG_EVERY = RemovedSetting((0,), "every step reports the estimated learning rate.")
TRITON = RemovedSetting((False,), "the update is the same without it.")
ALWAYS_BLOCKS = RemovedSetting((True, False), "bitsandbytes quantizes state in blocks, always.")
PERCENTILE_CLIPPING = RemovedSetting((100,), "bitsandbytes no longer has it. Use Clip grad norm.")
PAGED = RemovedSetting((False,), "the state stays on the training device.")
ALWAYS_8_BITS = RemovedSetting((8, "8", 32, "32"), "this optimizer keeps its state in 8 bits, always.")
NO_AMSGRAD = RemovedSetting((False,), "bitsandbytes does not support it.")
NO_NESTEROV = RemovedSetting((False,), "bitsandbytes does not support it.")
NO_DAMPENING = RemovedSetting((0,), "bitsandbytes does not support it.")
NO_RATE_DECAY = RemovedSetting((0,), "bitsandbytes does not support it. Use a schedule.")
NO_FIRST_SUM = RemovedSetting((0,), "bitsandbytes does not support it.")
NO_CENTERING = RemovedSetting((False,), "bitsandbytes does not support it.")
NO_MOMENTUM = RemovedSetting((0,), "bitsandbytes does not support it.")
ALWAYS_DECOUPLED = RemovedSetting((True,), "bitsandbytes applies weight decay to the weights, always.")
ALWAYS_CORRECTED = RemovedSetting((True,), "bitsandbytes corrects the averages for starting at zero, always.")
NO_LIMIT = RemovedSetting((1, 0.02), "bitsandbytes limits updates only where the state has 32 bits.")
FULL_GRADIENTS = RemovedSetting((True,), "the optimizer gets its gradients in float32, always.")
ALL_AT_ONCE = RemovedSetting((False,), "its estimate needs the gradients of all weights.")
