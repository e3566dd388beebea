"""Diversity: how different the images of one prompt are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch


def pairwise_distance(latents_KCHW: torch.Tensor) -> float:
    """Return the mean distance of two of a prompt's K latents, relative to their mean norm; NaN for fewer than two.

    About sqrt(2) for latents that have nothing in common, 0 for equal ones. Reward hacking shows as a falling value:
    the model samples the same image again and again.
    """
    flat_KD = latents_KCHW.detach().float().flatten(1)
    distances = [torch.linalg.vector_norm(a - b) for a, b in itertools.combinations(flat_KD, 2)]
    norm = torch.linalg.vector_norm(flat_KD, dim=1).mean()
    if not distances or norm.item() == 0.0:
        return math.nan
    return float(torch.stack(distances).mean() / norm)


def mean_diversity(prompts: Sequence[torch.Tensor]) -> float:
    """Return the mean of `pairwise_distance` over prompts, each with its latents (K, C, H, W); NaN if none has one."""
    found = [d for d in map(pairwise_distance, prompts) if not math.isnan(d)]
    return math.fsum(found) / len(found) if found else math.nan
