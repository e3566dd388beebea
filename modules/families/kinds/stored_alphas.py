"""The alphas of a kohya file: which layers have another one than most of their part. Torch-free.

An alpha is one number beside the factors of each layer; of a safetensors file these few bytes are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

from modules.formats.adapter_names import ALPHA, DOWN, Shape
from modules.formats.checkpoint_header import CheckpointHeader, read_scalars

Alpha = Literal["usual", "own", "missing", "not known"]
"""A layer's alpha: the most common one of its part, one of its own, or none while others of its part have one. "not
known": the file's alphas cannot be read, and they may differ since the ranks of the part do."""


def alphas_of(header: CheckpointHeader, layers: Mapping[str, tuple[str, Mapping[str, Shape]]]) -> dict[str, Alpha]:
    """Return what is known of the alpha of each LoRA layer; a layer that is not in it has the usual one.

    `layers` are the part of each layer and the shapes of its factors, by its name in the file.
    """
    ranks = {name: (part, s[DOWN][0]) for name, (part, s) in layers.items() if len(s.get(DOWN, ())) > 1}
    stored = [name for name in ranks if ALPHA in layers[name][1]]
    if not stored:
        return {}
    values = read_scalars(header, [f"{name}.{ALPHA}" for name in stored])
    found: dict[str, Alpha] = {}
    for part in {part for part, _ in ranks.values()}:
        own = {name: rank for name, (p, rank) in ranks.items() if p == part}
        found |= compared(own, {name: values.get(f"{name}.{ALPHA}") for name in stored if name in own})
    return found


def compared(ranks: Mapping[str, int], alphas: Mapping[str, float | None]) -> dict[str, Alpha]:
    """Return what is known of the alphas of one part, by its LoRA layers.

    `alphas` are those of the layers with one, None where it cannot be read.
    """
    if None in alphas.values():
        return dict.fromkeys(ranks, "not known") if alphas and len(set(ranks.values())) > 1 else {}
    if not alphas:
        return {}
    # The one that comes first by name where two are as common: programs read the tensors in that order.
    usual = Counter(alphas[name] for name in sorted(alphas)).most_common(1)[0][0]
    found: dict[str, Alpha] = {name: "own" for name, alpha in alphas.items() if alpha != usual}
    return found | {name: "missing" for name, rank in ranks.items() if name not in alphas and rank != usual}
