"""Which factors make up the change of a layer, from their names alone. Torch-free."""

from __future__ import annotations

from collections.abc import Collection

from modules.formats.adapter_names import DORA_SCALE, DOWN, LOHA_FACTORS, LORA_FACTORS, lacking_factor

BIASES = frozenset({"diff_b", "b_norm"})
DIFFERENCES = frozenset({"diff", "w_norm"})
_LOKR = frozenset({"lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2", DORA_SCALE})
# All factors of a kind, and those without which it is none.
_KINDS = (
    (LORA_FACTORS, {DOWN}),
    (LOHA_FACTORS, {"hada_w1_a"}),
    (_LOKR, {"lokr_w1", "lokr_w1_a"}),
    (DIFFERENCES, DIFFERENCES),
)


def can_act(factors: Collection[str]) -> bool:
    """Return whether the change of a layer with these factors is known here: that of OFT and of GLoRA is not."""
    names = frozenset(factors) - BIASES
    if not names:
        return bool(factors)
    return not lacking_factor(names) and any(names <= kind and names & first for kind, first in _KINDS)
