"""The shared base of flow models whose denoiser attends to one sequence of text states and reads nothing else of it."""

from __future__ import annotations

from abc import ABC
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning, SizeConditioning
from modules.diffusion.flow import FlowProcess
from modules.families.parts.conditioning import TokenConditioning
from modules.families.parts.latent_model import LatentModel


@dataclass(eq=False)
class TokenModel(LatentModel[FlowProcess], ABC):
    """A loaded model with one text encoder, whose prompts have different numbers of tokens and no pooled state."""

    def with_size_conditioning(
        self, conditioning: Conditioning, size_conditionings: Sequence[SizeConditioning]
    ) -> TokenConditioning:
        """Return the conditioning as it is: the model has no size conditioning."""
        return tokens_of(conditioning)

    def with_empty_prompts(
        self, conditioning: Conditioning, empty_for: Sequence[Collection[int]], empty: Conditioning
    ) -> TokenConditioning:
        """Return the conditioning with the empty prompt, in its template, for the prompts that name the encoder."""
        return tokens_of(conditioning).with_empty_prompts([0 in e for e in empty_for], tokens_of(empty))

    def conditioning_from(self, tensors: Mapping[str, torch.Tensor]) -> TokenConditioning:
        """Return the conditioning of a cache entry."""
        return TokenConditioning.from_tensors(tensors)

    def join(self, conditionings: Sequence[Conditioning], empty: Conditioning) -> TokenConditioning:
        """Join several conditionings into one."""
        return TokenConditioning.join([tokens_of(c) for c in conditionings])


def tokens_of(conditioning: Conditioning) -> TokenConditioning:
    """Return a conditioning, which must be of such a model."""
    assert isinstance(conditioning, TokenConditioning), f"conditioning of another family: {type(conditioning)}"
    return conditioning
