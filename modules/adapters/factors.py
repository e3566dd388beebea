"""Which factors make up the change of a layer, from their names and shapes alone. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping

from modules.formats.adapter_names import (
    DORA_SCALE,
    DOWN,
    LOHA_FACTORS,
    LORA_FACTORS,
    OFT_BLOCKS,
    OFT_VECTORS,
    RESCALE,
    Shape,
    lacking_factor,
)

BIASES = frozenset({"diff_b", "b_norm"})
DIFFERENCES = frozenset({"diff", "w_norm"})
_LOKR = frozenset({"lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2", DORA_SCALE})
# All factors of a kind, and those without which it is none.
_KINDS = (
    (LORA_FACTORS, {DOWN}),
    (LOHA_FACTORS, {"hada_w1_a"}),
    (_LOKR, {"lokr_w1", "lokr_w1_a"}),
    ({OFT_BLOCKS, RESCALE}, {OFT_BLOCKS}),
    ({OFT_VECTORS}, {OFT_VECTORS}),
    (DIFFERENCES, DIFFERENCES),
)


def can_act(shapes: Mapping[str, Shape]) -> bool:
    """Return whether the change of a layer with factors of these shapes is known here: that of BOFT, whose blocks have
    four axes, and of GLoRA is not.
    """
    names = frozenset(shapes) - BIASES
    if not names:
        return bool(shapes)
    if len(shapes.get(OFT_BLOCKS, (0, 0, 0))) != 3:
        return False
    return not lacking_factor(names) and any(names <= kind and names & first for kind, first in _KINDS)
