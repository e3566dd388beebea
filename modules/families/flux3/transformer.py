"""diffusers' transformer of FLUX.3, with a mask for the shorter texts of a batch.

diffusers' class has no mask: its pipeline reads one prompt, and its transformer attends to all tokens, the padding up
to a multiple of 80 among them. In a batch no token attends to what is behind that padding. Shapes: L tokens of text, T
tokens of an image, R tokens of its reference images, D width, H channels of a head.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.models.transformers import transformer_flux3 as flux3
from torch.nn import functional

Rotary = tuple[torch.Tensor, ...]
"""The cosines and sines of positions (L, H), and behind them the mask of the tokens to attend to, if there is one."""


class Stream(NamedTuple):
    """The latents (B, T, C) of images, the embedding (B, 1, D) of their time, and the turns of their positions."""

    latents: torch.Tensor
    time: torch.Tensor
    rotary: Rotary


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
        image_cond_hidden_states: torch.Tensor | None = None,
        image_cond_ids: torch.Tensor | None = None,
        return_dict: bool = True,
    ) -> Any:
        """Return the velocity (B, T, C) of latents for a text (B, L, C) and references (B, R, C) at times in [0, 1].

        The positions (T, 4), (L, 4) and (R, 4) are the same for all samples. The mask (B, L) is true for the tokens of
        a sample's own text and padding. Text and references are modulated as at time 0, and all tokens of a sample
        alike, so that the modulations are computed once for each sample.
        """
        dtype = hidden_states.dtype
        time_B1D = self._embed_times(timestep, dtype)
        streams = {"image": Stream(hidden_states, functional.silu(time_B1D), self.pos_embed(img_ids))}
        of_clean = functional.silu(self._embed_times(timestep.new_zeros(1), dtype))
        if image_cond_hidden_states is not None:
            streams["image_cond"] = Stream(image_cond_hidden_states, of_clean, self.pos_embed(image_cond_ids))
        text_rotary: Rotary = self.pos_embed(txt_ids)
        turns = text_rotary, *(stream.rotary for stream in streams.values())
        joint_rotary: Rotary = tuple(map(torch.cat, zip(*turns, strict=True)))
        if (is_text := encoder_hidden_states_mask) is not None:
            others = is_text.new_ones(len(is_text), joint_rotary[0].shape[0] - is_text.shape[1])
            text_rotary = (*text_rotary, is_text[:, None, None])
            joint_rotary = (*joint_rotary, torch.cat([is_text, others], dim=1)[:, None, None])
        text, modulation = self.context_embedder(encoder_hidden_states), self.early_stream_modulations["txt"](of_clean)
        for block in self.txt_mode_blocks:
            text = block(text, modulation, text_rotary)
        images = [self._through_own_blocks(name, stream) for name, stream in streams.items()]
        content, modulation = images[0]
        if len(images) > 1:
            content = torch.cat([tokens for tokens, _ in images], dim=1)
            modulation = torch.cat([m.expand(len(text), tokens.shape[1], -1) for tokens, m in images], dim=1)
        text_modulation = self.single_stream_modulations["txt"](of_clean)
        for block in self.single_transformer_blocks:
            text, content = block(content, text, modulation, text_modulation, joint_rotary)
        velocity = self.proj_out(self.norm_out(content[:, : hidden_states.shape[1]], time_B1D))
        return Transformer2DModelOutput(sample=velocity) if return_dict else (velocity,)

    def _through_own_blocks(self, name: str, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a stream's tokens (B, T, D) behind its own blocks, and its modulation (B, 1, 3 D) in joint ones."""
        tokens, modulation = self.x_embedders[name](stream.latents), self.early_stream_modulations[name](stream.time)
        for block in self.mode_blocks[name]:
            tokens = block(tokens, modulation, stream.rotary)
        return tokens, self.single_stream_modulations[name](stream.time)

    def _embed_times(self, times_B: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the embedding (B, 1, D) of times in [0, 1]."""
        sinusoids = self.time_proj(times_B.to(dtype) * 1000)
        embedded: torch.Tensor = self.timestep_embedder(sinusoids.to(dtype))[:, None]
        return embedded
