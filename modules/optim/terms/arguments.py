"""The arguments of an optimizer's constructor, from its settings: a setting is the argument of its name."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

_NOT_ARGUMENTS = ("name", "fused_back_pass")
_BETAS = ("beta1", "beta2", "beta3")
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
    without: Collection[str] = (),
    more: Callable[[Any], Mapping[str, Any]] | None = None,
) -> Callable[[Any], dict[str, Any]]:
    """Return the `arguments` function of an optimizer whose constructor has an argument for each setting.

    `names` are arguments that have other names than their settings. Two or three betas are one argument, and so are two
    epsilons; a beta that may be empty is an argument of its own. Settings in `without` are not arguments;
    `more(settings)` adds arguments or replaces them.
    """
    renamed = _NAMES | dict(names or {})

    def arguments_of(settings: Any) -> dict[str, Any]:
        fields = [f for f in type(settings).model_fields if f not in _NOT_ARGUMENTS and f not in without]
        values = {f: getattr(settings, f) for f in fields if not f.startswith(_GROUPING)}
        arguments: dict[str, Any] = {}
        betas = [f for f in values if f in _BETAS and type(settings).model_fields[f].default is not None]
        if len(betas) > 1:
            arguments["betas"] = tuple(values.pop(beta) for beta in betas)
        if "eps2" in values:
            arguments["eps"] = values.pop("eps"), values.pop("eps2")
        arguments |= {renamed.get(f, f): _VALUES[f](value) if f in _VALUES else value for f, value in values.items()}
        return arguments | dict(more(settings) if more else {})

    return arguments_of
