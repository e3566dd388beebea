"""The conditioning of Stable Diffusion 3, from the states of each text encoder that the model has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from modules.families.parts.encoder_states import EncoderStates
from modules.families.parts.part_classes import CLIP_CHUNK_TOKENS

ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
"""CLIP-L, CLIP-G and T5, in the order in which the transformer gets their states."""
CLIPS = ENCODERS[:2]


@dataclass(frozen=True, eq=False)
class Sd3Conditioning(EncoderStates):
    """The states (B, L, D) of B prompts by text encoder, and the pooled states (B, E) of the CLIPs."""

    encoders: ClassVar[tuple[str, ...]] = ENCODERS

    def joint(self, width: int, pooled_width: int, t5_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the transformer's inputs: states (B, 77 + t5_tokens, width), and pooled states (B, pooled_width).

        The states are those of both CLIPs side by side, with zeros behind them, and then T5's. Zeros stand for an
        encoder that the model lacks; the states and the pooled states of a CLIP have the same width.
        """
        like = next(iter(self.states.values()))
        num_clip = CLIP_CHUNK_TOKENS + 2
        behind = sum(t.shape[-1] for name, t in self.pooled.items() if name != ENCODERS[0])
        before = 0 if ENCODERS[0] in self.states else pooled_width - behind
        clips_BLD = [self.states[name] for name in CLIPS if name in self.states]
        clip_BLD = torch.cat(clips_BLD, dim=-1) if clips_BLD else like.new_zeros(len(self), num_clip, 0)
        pooled_BE = torch.cat([like.new_zeros(len(self), 0), *self.pooled.values()], dim=-1)
        before = before if clips_BLD else 0
        t5_BLD = self.states.get(ENCODERS[2])
        if t5_BLD is None:
            t5_BLD = like.new_zeros(len(self), t5_tokens, width)
        clip_BLD = nn.functional.pad(clip_BLD, (before, width - before - clip_BLD.shape[-1]))
        pooled_BE = nn.functional.pad(pooled_BE, (before, pooled_width - before - pooled_BE.shape[-1]))
        return torch.cat([clip_BLD, t5_BLD], dim=1), pooled_BE
