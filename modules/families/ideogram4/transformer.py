"""diffusers' transformer of Ideogram 4, for the tokens of a text and of an image as separate inputs.

diffusers' class gets one sequence, in which the text states of image tokens are zeros: at 1024 px those alone are 4,096
times 53,248 values, and their norm is computed in float32. They add nothing, so they are left out here. Padding is
masked, so that it does not matter where it is; positions are the same. Shapes: L tokens of text, T tokens of an image,
S = L + T, D channels of a head.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.models.transformers import transformer_ideogram4 as ideogram4
from torch import nn


class Rotations(nn.Module):
    """The rotations of queries and keys by position, always computed in float32.

    The positions of images begin at 65,536, where bfloat16 cannot tell 512 of them apart, nor TF32 64. So neither
    autocast nor the dtype of the weights may affect them: this is not a matrix product, and has no buffer.
    """

    def __init__(self, channels: int, base: float, sections: Sequence[int]) -> None:
        super().__init__()
        self._channels, self._base, self._sections = channels, base, tuple(sections)

    def forward(self, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cosines and sines (B, S, D) of positions (B, S, 3): in time, row and column."""
        exponents = torch.arange(0, self._channels, 2, device=position_ids.device, dtype=torch.float32) / self._channels
        angles = position_ids.float()[..., None] * (1.0 / self._base**exponents)  # (B, S, 3, D / 2)
        frequency = torch.arange(exponents.numel(), device=position_ids.device)
        is_row, is_column = ((frequency % 3 == n) & (frequency < 3 * self._sections[n]) for n in (1, 2))
        axis = is_row.long() + 2 * is_column.long()
        chosen_BSC = angles.gather(2, axis.expand(*angles.shape[:2], 1, -1)).squeeze(2)
        both_BSD = torch.cat([chosen_BSC, chosen_BSC], dim=-1)
        return both_BSD.cos(), both_BSD.sin()


class Ideogram4Transformer2DModel(ideogram4.Ideogram4Transformer2DModel):  # type: ignore[misc]  # has no types
    """diffusers' module, with the same configs and tensors."""

    # diffusers reads the config's keys in the signature of its own.
    @functools.wraps(ideogram4.Ideogram4Transformer2DModel.__init__)  # type: ignore[misc]  # not of constructors
    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **config)
        self.rotary_emb = Rotations(
            self.config.attention_head_dim, float(self.config.rope_theta), self.config.mrope_section
        )

    def forward(
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        position_ids: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        return_dict: bool = True,
    ) -> Transformer2DModelOutput | tuple[torch.Tensor]:
        """Return the velocity of the tokens of images, (B, T, C).

        `hidden_states` are those tokens, and `timestep` (B,) the model's time. `position_ids` (1, S, 3) are those of
        text and image, `encoder_hidden_states` (B, L, states of text), none without text. `encoder_attention_mask`
        (B, L) is true for tokens that are not padding; without it no token is padding.
        """
        tokens, count = self.input_proj(hidden_states), hidden_states.shape[1]
        kinds = tokens.new_ones(1, count, dtype=torch.long)
        attention_mask = None
        if encoder_hidden_states is not None:
            text = self.llm_cond_proj(self.llm_cond_norm(encoder_hidden_states))
            tokens = torch.cat([text, tokens.to(text.dtype)], dim=1)
            kinds = nn.functional.pad(kinds, (text.shape[1], 0))
            if encoder_attention_mask is not None:
                attention_mask = nn.functional.pad(encoder_attention_mask, (0, count), value=True)[:, None, None]
        states = tokens + self.embed_image_indicator(kinds).to(tokens.dtype)
        modulation = nn.functional.silu(self.adaln_proj(self.t_embedding(timestep).unsqueeze(1)))
        rotations = tuple(values.to(states.dtype) for values in self.rotary_emb(position_ids))
        for block in self.layers:
            states = block(states, attention_mask, rotations, modulation)
        output = self.final_layer(states[:, -count:], conditioning=modulation)
        return Transformer2DModelOutput(sample=output) if return_dict else (output,)
