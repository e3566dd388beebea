"""The alphas of an adapter file: which layers have one that some programs do not apply. Torch-free.

In a kohya file an alpha is one number beside the factors of each layer; of a safetensors file these few bytes are read.
In a PEFT file the alphas are in the metadata.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

from modules.formats.adapter_names import ALPHA, DOWN, Shape
from modules.formats.checkpoint_header import CheckpointHeader, read_scalars
from modules.formats.peft_settings import PEFT_SETTINGS, PeftAlphas

Alpha = Literal["usual", "own", "missing", "not known", "in the metadata"]
"""A layer's alpha: the most common one of its part, one of its own, or none while others of its part have one. "not
known": the file's alphas cannot be read, and they may differ since the ranks of the part do. "in the
metadata": it is there alone, and not the rank, so that a program that ignores it uses a wrong strength."""


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


def alphas_in_metadata(
    header: CheckpointHeader, layers: Mapping[str, tuple[str, str, Mapping[str, Shape]]]
) -> dict[str, Alpha]:
    """Return the LoRA layers whose alpha is in the metadata alone and is not their rank.

    `layers` are the part and the path of each layer and the shapes of its factors, by its name in the file.
    """
    if PEFT_SETTINGS not in header.metadata:
        return {}
    alphas = PeftAlphas(header.metadata)
    found: dict[str, Alpha] = {}
    for name, (part, path, shapes) in layers.items():
        if ALPHA in shapes or len(shapes.get(DOWN, ())) < 2:
            continue
        rank = shapes[DOWN][0]
        if alphas.find(part, path, rank) not in (None, rank):
            found[name] = "in the metadata"
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
