"""diffusers' transformer of FLUX.3, with a mask for the shorter texts of a batch.

diffusers' class has no mask: its pipeline reads one prompt, and its transformer attends to all tokens, the padding up
to a multiple of 80 among them. In a batch no token attends to what is behind that padding. Shapes: L tokens of text, T
tokens of an image, D width, H channels of a head.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.models.transformers import transformer_flux3 as flux3
from torch.nn import functional

Rotary = tuple[torch.Tensor, ...]
"""The cosines and sines of positions (L, H), and behind them the mask of the tokens to attend to, if there is one."""


class AttnProcessor(flux3.Flux3AttnProcessor):  # type: ignore[misc]  # has no types
    """diffusers' attention, with the mask that blocks pass on with the positions."""

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Rotary | None = None,
    ) -> torch.Tensor:
        """Return the attention of states (B, L, D)."""
        assert image_rotary_emb is not None
        cos, sin, *masks = image_rotary_emb
        mask = masks[0] if masks else attention_mask
        result: torch.Tensor = super().__call__(attn, hidden_states, mask, (cos, sin))
        return result


class Flux3Transformer2DModel(flux3.Flux3Transformer2DModel):  # type: ignore[misc]  # has no types
    """diffusers' module, with the same configs and tensors, for latents and their text."""

    # diffusers reads the config's keys in the signature of its own.
    @functools.wraps(flux3.Flux3Transformer2DModel.__init__)  # type: ignore[misc]  # not of constructors
    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **config)
        self.set_attn_processor(AttnProcessor())

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        img_ids: torch.Tensor,
        txt_ids: torch.Tensor,
        encoder_hidden_states_mask: torch.Tensor | None = None,
        return_dict: bool = True,
    ) -> Any:
        """Return the velocity (B, T, C) of latents for a text (B, L, C) at times in [0, 1].

        The positions (T, 4) and (L, 4) are those of all samples. The mask (B, L) is true for the tokens of a sample's
        own text and padding. Text is modulated as at time 0, and all tokens of a sample alike, so that the modulations
        are computed once for each sample.
        """
        dtype = hidden_states.dtype
        time_B1D = self._embedded(timestep, dtype)
        of_image, of_text = functional.silu(time_B1D), functional.silu(self._embedded(timestep.new_zeros(1), dtype))
        image_rotary, text_rotary = self.pos_embed(img_ids), self.pos_embed(txt_ids)
        joint_rotary: Rotary = tuple(torch.cat(pair) for pair in zip(text_rotary, image_rotary, strict=True))
        if encoder_hidden_states_mask is not None:
            is_image = encoder_hidden_states_mask.new_ones(hidden_states.shape[:2])
            is_read = torch.cat([encoder_hidden_states_mask, is_image], dim=1)
            text_rotary = (*text_rotary, encoder_hidden_states_mask[:, None, None])
            joint_rotary = (*joint_rotary, is_read[:, None, None])
        text, image = self.context_embedder(encoder_hidden_states), self.x_embedders["image"](hidden_states)
        early, joint = self.early_stream_modulations, self.single_stream_modulations
        text_modulation, image_modulation = early["txt"](of_text), early["image"](of_image)
        for block in self.txt_mode_blocks:
            text = block(text, text_modulation, text_rotary)
        for block in self.mode_blocks["image"]:
            image = block(image, image_modulation, image_rotary)
        text_modulation, image_modulation = joint["txt"](of_text), joint["image"](of_image)
        for block in self.single_transformer_blocks:
            text, image = block(image, text, image_modulation, text_modulation, joint_rotary)
        velocity = self.proj_out(self.norm_out(image, time_B1D))
        return Transformer2DModelOutput(sample=velocity) if return_dict else (velocity,)

    def _embedded(self, times_B: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the embedding (B, 1, D) of times in [0, 1]."""
        sinusoids = self.time_proj(times_B.to(dtype) * 1000)
        embedded: torch.Tensor = self.timestep_embedder(sinusoids.to(dtype))[:, None]
        return embedded
