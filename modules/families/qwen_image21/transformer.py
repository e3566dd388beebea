"""diffusers' transformer of Qwen-Image 2.1, without reference images, and with the positions of each prompt's length.

An image is placed behind its text. In diffusers' class all images of a batch are placed behind the longest text, so
that a prediction would depend on the other prompts of the batch. Here each is behind its own. Shapes: L tokens of text,
T tokens of an image, S = L + T, D channels of a head.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.models.transformers import transformer_qwenimage21 as qwenimage21
from torch import nn

_TIME_CHANNELS = 256
_LONGEST_PERIOD, _THETA = 10_000, 10_000


class AttnProcessor:
    """The attention of one block: text attends to the text before it, the image to everything.

    Padding is behind a text, so that no token of it attends to padding; images do not because of a mask.
    """

    _attention_backend = None
    _parallel_config = None

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
        segments: tuple[int, ...] = (0,),
        **_: object,
    ) -> torch.Tensor:
        """Return the attention of states (B, S, C), the first tokens of which, as many as `segments` has, are text."""
        assert rotary_emb is not None
        [length] = segments
        query, key, value = (
            layer(hidden_states).unflatten(-1, (-1, attn.norm_q.weight.shape[0]))
            for layer in (attn.to_q, attn.to_k, attn.to_v)
        )
        query = _rotate(attn.norm_q(query).to(value.dtype), *rotary_emb)
        key = _rotate(attn.norm_k(key).to(value.dtype), *rotary_emb)
        text = dispatch_attention_fn(
            *(states[:, :length] for states in (query, key, value)), is_causal=True, backend=self._attention_backend
        )
        image = dispatch_attention_fn(
            query[:, length:], key, value, attn_mask=attention_mask, backend=self._attention_backend
        )
        joint = torch.cat([text, image], dim=1).flatten(2).to(query.dtype)
        result: torch.Tensor = attn.to_out[1](attn.to_out[0](joint))
        return result


class QwenImage21Transformer2DModel(qwenimage21.QwenImage21Transformer2DModel):  # type: ignore[misc]  # has no types
    """diffusers' module, with the same configs and tensors, for latents and their text."""

    # diffusers reads the config's keys in the signature of its own.
    @functools.wraps(qwenimage21.QwenImage21Transformer2DModel.__init__)  # type: ignore[misc]  # not of constructors
    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **config)
        # Their tables are not weights; `forward` computes what it needs of them.
        self.pos_embed = nn.Identity()
        self.time_text_embed.time_proj = nn.Identity()
        for block in self.transformer_blocks:
            block.attn.set_processor(AttnProcessor())

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states_mask: torch.Tensor | None = None,
        return_dict: bool = True,
    ) -> Any:
        """Return the velocity (B, C, H, W) of latents for a text (B, L, C) at times in [0, 1].

        The mask (B, L) is true for the tokens of prompts, not for padding. Text is modulated as at time
        0.
        """
        rows, columns = hidden_states.shape[-2:]
        image = self.img_in(hidden_states.flatten(2).transpose(1, 2))
        joint = torch.cat([self.txt_in(encoder_hidden_states), image], dim=1)
        (batch, length), device = encoder_hidden_states.shape[:2], joint.device
        visible, lengths_B = None, torch.full((batch,), length, device=device)
        if encoder_hidden_states_mask is not None:
            lengths_B = encoder_hidden_states_mask.sum(1)
            image_visible = encoder_hidden_states_mask.new_ones(batch, rows * columns)
            visible = torch.cat([encoder_hidden_states_mask, image_visible], dim=1)[:, None, None]
        rotary = _rotary(lengths_B, length, rows, columns, self.config.axes_dims_rope)
        is_image_S = torch.arange(joint.shape[1], device=device) >= length
        times = torch.cat([timestep, timestep.new_zeros(1)]).to(joint.dtype)
        embedded = self.time_text_embed.timestep_embedder(_embed_times(times))
        modulation = self.modulation(embedded)
        for block in self.transformer_blocks:
            joint = block(
                hidden_states=joint,
                modulation=modulation,
                rotary_emb=rotary,
                attention_mask=visible,
                target_token_mask=is_image_S,
                segments=(length,),
            )
        output = self.proj_out(self.norm_out(joint[:, length:], embedded[:-1]))
        velocity = output.transpose(1, 2).unflatten(2, (rows, columns))
        return Transformer2DModelOutput(sample=velocity) if return_dict else (velocity,)


def _embed_times(times: torch.Tensor) -> torch.Tensor:
    """Return the sinusoids of times (B,) in [0, 1], in their dtype."""
    half = _TIME_CHANNELS // 2
    steps = torch.arange(half, dtype=torch.float32, device=times.device)
    angles = 1000.0 * times.float()[:, None] * torch.exp(-math.log(_LONGEST_PERIOD) * steps / half)
    return torch.cat([angles.cos(), angles.sin()], dim=-1).to(times.dtype)


def _rotary(
    lengths_B: torch.Tensor, length: int, rows: int, columns: int, axes: tuple[int, int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosines and sines (B, S, 1, D / 2) of the tokens' positions on three axes.

    A token of text has its number on all axes. An image has on the first axis the number of its text's tokens, on the
    others its row and column, counted from its centre.
    """
    device = lengths_B.device
    text_BL3 = torch.arange(length, device=device)[None, :, None].expand(len(lengths_B), -1, 3)
    row_T = (torch.arange(rows, device=device) - (rows - rows // 2)).repeat_interleave(columns)
    column_T = (torch.arange(columns, device=device) - (columns - columns // 2)).repeat(rows)
    image_BT3 = torch.stack(
        [axis.expand(len(lengths_B), rows * columns) for axis in (lengths_B[:, None], row_T, column_T)], dim=-1
    )
    positions_BS3 = torch.cat([text_BL3, image_BT3], dim=1).float()
    steps = [torch.arange(0, size, 2, dtype=torch.float32, device=device) / size for size in axes]
    turns = [positions_BS3[..., axis : axis + 1] * (1.0 / _THETA**step) for axis, step in enumerate(steps)]
    angles_BS1D = torch.cat(turns, dim=-1)[:, :, None]
    return angles_BS1D.cos(), angles_BS1D.sin()


def _rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return states (B, S, heads, D), each pair of whose channels is turned by its angle."""
    first, second = states.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return turned.flatten(-2).to(states.dtype)
