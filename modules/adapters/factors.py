"""Which factors make up the change of a layer, from their names alone. Torch-free."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from modules.formats.adapter_names import DORA_SCALE, DOWN, LOHA_FACTORS, LORA_FACTORS, UP

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
_NEEDED = ((DOWN, UP), ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"))


def can_act(factors: Collection[str]) -> bool:
    """Return whether the change of a layer with these factors is known here: that of OFT and of GLoRA is not."""
    names = frozenset(factors) - BIASES
    if not names:
        return bool(factors)
    return not lacking_factor(names) and any(names <= kind and names & first for kind, first in _KINDS)


def lacking_factor(factors: Collection[str]) -> str:
    """Return the name of a factor that a layer with these lacks; empty where its change is complete."""
    return next(_lacking(frozenset(factors)), "")


def _lacking(names: frozenset[str]) -> Iterator[str]:
    for needed in _NEEDED:
        if names & set(needed):
            yield from (name for name in needed if name not in names)
    if any(name.startswith("lokr_") for name in names):
        for side in ("lokr_w1", "lokr_w2"):
            if side not in names and not {f"{side}_a", f"{side}_b"} <= names:
                yield side
