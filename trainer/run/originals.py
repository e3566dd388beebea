"""The original model of a run, which its reference and its prior predict with: what the run starts from.

All of it is decided here, once all weights that the run starts from are in the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modules.adapters.protocol import Adapter
from modules.config.method_facts import original_has_adapter, uses_prior
from modules.config.schema import Config
from modules.memory.frozen_copy import FrozenCopy
from trainer.run.model import LoadedModel
from trainer.run.placement import placed_copy


@dataclass(frozen=True, eq=False)
class Original:
    """How the original model differs from the trained one: it is without some adapters, and has copies of weights.

    With `is_prepared` False nothing was copied, since the run stated that no step needs it.
    """

    without: Sequence[Adapter] = ()
    copies: Sequence[FrozenCopy] = ()
    is_prepared: bool = True

    def differences(self) -> tuple[Sequence[Adapter], Sequence[FrozenCopy]]:
        """Return both, for a prediction. Raises ValueError if the method's record does not state the need of one."""
        if not self.is_prepared:
            raise ValueError("the method predicts with the original model, but its record sets no `needs_reference`")
        return self.without, self.copies


def original_of(config: Config, model: LoadedModel, *, has_start_weights: bool) -> Original:
    """Return the original model of a run; the model must have the weights that the run starts from.

    Every trained unit is a copy of what it starts as: parts, adapters and embeddings. Only new adapters are switched
    off instead, which is the same, and the adapters that the original model is without (`original_has_adapter`).
    `has_start_weights`: the run starts from weights of another run's backup, so its adapters are not new.
    """
    if not uses_prior(config):
        return Original(is_prepared=False)
    is_without = config.training.trains == "adapter"
    is_without = is_without and not original_has_adapter(config, has_start_weights=has_start_weights)
    without = model.adapters if is_without else ()
    of_adapters = {name for adapter in without for name in adapter.parameters()}
    groups = [g for g in model.groups if not of_adapters.issuperset(g.parameters)]
    copies = (placed_copy(model.family, groups, model.placement, name="original"),) if groups else ()
    return Original(without, copies)
