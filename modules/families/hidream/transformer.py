"""diffusers' transformer of HiDream I1, in which every expert takes part in every pass.

A token is computed by the experts that its block's gate chooses, and by the shared ones. diffusers' class has a path of
its own for training, whose output has another shape and whose experts get no gradient. Here there is a single path: an
expert that no token chose computes no rows, so its gradient is zeros and no weight is ever without one. The choice of
experts depends only on the states in the block, so a checkpointed block computes the same again.

Shapes: N tokens of a batch, K experts of a token, C channels, S tokens of an image, L tokens of a text.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.models.transformers import transformer_hidream_image as hidream
from torch import nn

_PADDED_FROM = 0.9


class Gate(nn.Module):
    """Chooses the experts of each token; adapters do not change its weight, which belongs to no layer."""

    def __init__(self, gate: hidream.MoEGate) -> None:
        super().__init__()
        self.weight, self.num_chosen = gate.weight, int(gate.top_k)

    def forward(self, tokens_NC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights (N, K) of the chosen experts, and their indices (N, K)."""
        scores = nn.functional.linear(tokens_NC, self.weight).softmax(dim=-1)
        weights_NK, chosen_NK = scores.topk(self.num_chosen, dim=-1, sorted=False)
        return weights_NK, chosen_NK


class RoutedFeedForward(nn.Module):
    """The experts of a block: diffusers' `MOEFeedForwardSwiGLU`, with the same names of tensors.

    While it `is_traced`, on tensors without data, equally many tokens choose each expert.
    """

    def __init__(self, feed_forward: hidream.MOEFeedForwardSwiGLU) -> None:
        super().__init__()
        self.shared_experts, self.experts = feed_forward.shared_experts, feed_forward.experts
        self.gate = Gate(feed_forward.gate)
        self.is_traced = False

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the sum of the chosen experts, by their weights, and of the shared ones for states (B, S, C)."""
        routed_NC: torch.Tensor = self._route(states.flatten(0, -2))
        result: torch.Tensor = routed_NC.to(states.dtype).view_as(states) + self.shared_experts(states)
        return result

    # The number of tokens of an expert changes from step to step.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _route(self, tokens_NC: torch.Tensor) -> torch.Tensor:
        weights_NK, chosen_NK = self.gate(tokens_NC)
        num_chosen = chosen_NK.shape[-1]
        order = chosen_NK.flatten().argsort(stable=True)  # sorts all choices by expert
        rows = tokens_NC[order // num_chosen].split(self._counts(chosen_NK))
        outputs = torch.cat([expert(routed) for expert, routed in zip(self.experts, rows, strict=True)])
        outputs_NKC = outputs.to(tokens_NC.dtype)[order.argsort()].unflatten(0, (-1, num_chosen))
        routed_NC: torch.Tensor = (outputs_NKC * weights_NK.unsqueeze(-1)).sum(dim=1)
        return routed_NC

    def _counts(self, chosen_NK: torch.Tensor) -> list[int]:
        """Return how many tokens chose each expert."""
        if self.is_traced:
            return [chosen_NK.numel() // len(self.experts)] * len(self.experts)
        counts: list[int] = chosen_NK.flatten().bincount(minlength=len(self.experts)).tolist()
        return counts


class HiDreamImageTransformer2DModel(hidream.HiDreamImageTransformer2DModel):  # type: ignore[misc]  # has no types
    """diffusers' module, with the same configs and tensors."""

    # diffusers reads the config's keys in the signature of its own.
    @functools.wraps(hidream.HiDreamImageTransformer2DModel.__init__)  # type: ignore[misc]  # not of constructors
    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **config)
        for block in (*self.double_stream_blocks, *self.single_stream_blocks):
            if isinstance(block.block.ff_i, hidream.MOEFeedForwardSwiGLU):
                block.block.ff_i = RoutedFeedForward(block.block.ff_i)

    def forward(
        self,
        hidden_states: torch.Tensor,
        timesteps: torch.Tensor,
        encoder_hidden_states_t5: torch.Tensor,
        encoder_hidden_states_llama3: torch.Tensor,
        pooled_embeds: torch.Tensor,
        return_dict: bool = True,
    ) -> Any:
        """Return the output (B, C, H, W) for latents at times in [0, 1000].

        The text is T5's states (B, L, C), the states of all layers of Llama (layers, B, L, C), and the pooled states of
        both CLIPs (B, C). Each block reads one of Llama's layers.
        """
        side, (rows, columns) = self.config.patch_size, hidden_states.shape[-2:]
        grid = (rows // side, columns // side)
        image, mask = self._image_tokens(hidden_states, *grid)
        temb = self.t_embedder(timesteps, image.dtype) + self.p_embedder(pooled_embeds)
        *projections, of_t5 = self.caption_projection
        layers = [
            projection(encoder_hidden_states_llama3[index])
            for projection, index in zip(projections, self.config.llama_layers, strict=True)
        ]
        text = torch.cat([of_t5(encoder_hidden_states_t5), layers[-1]], dim=1)
        rotary = self._rotary(*grid, image.shape[1], text.shape[1] + layers[0].shape[1], image.device)
        image = self._through_blocks(image, mask, text, layers, temb, rotary)[:, : grid[0] * grid[1]]
        patches = self.final_layer(image, temb).unflatten(2, (side, side, -1)).unflatten(1, grid)
        output = patches.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)
        return Transformer2DModelOutput(sample=output) if return_dict else (output,)

    def _through_blocks(
        self,
        image: torch.Tensor,
        mask: torch.Tensor | None,
        text: torch.Tensor,
        layers: list[torch.Tensor],
        temb: torch.Tensor,
        rotary: torch.Tensor,
    ) -> torch.Tensor:
        """Return the states of the image's tokens after all blocks; each block reads its layer of Llama, too."""
        num_image, num_text = image.shape[1], text.shape[1]
        num_double = len(self.double_stream_blocks)
        of_blocks = {"temb": temb, "image_rotary_emb": rotary}
        for block, layer in zip(self.double_stream_blocks, layers[:num_double], strict=True):
            both = torch.cat([text, layer], dim=1)
            image, both = block(hidden_states=image, hidden_states_masks=mask, encoder_hidden_states=both, **of_blocks)
            text = both[:, :num_text]
        joint = torch.cat([image, text], dim=1)
        if mask is not None:
            mask = nn.functional.pad(mask, (0, num_text + layers[-1].shape[1]), value=1.0)
        for block, layer in zip(self.single_stream_blocks, layers[num_double:], strict=True):
            both = torch.cat([joint, layer], dim=1)
            joint = block(hidden_states=both, hidden_states_masks=mask, **of_blocks)[:, : num_image + num_text]
        return joint[:, :num_image]

    def _image_tokens(
        self, latents_BCHW: torch.Tensor, rows: int, columns: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the tokens (B, S, C) of latents, and which of them (B, S) are 1, not padding, if there is any.

        As in diffusers, images that are not square are padded to `max_seq` tokens, whose keys are zeros. Its pipeline
        scales all images to about as many; much smaller ones, which it never has, are not padded here: nearly all that
        their tokens attend to would be padding.
        """
        side = self.config.patch_size
        patches = latents_BCHW.unflatten(3, (columns, side)).unflatten(2, (rows, side))
        tokens = patches.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        num_padding = self.max_seq - rows * columns
        if rows == columns or not 0 < num_padding <= (1 - _PADDED_FROM) * self.max_seq:
            return self.x_embedder(tokens), None
        mask = nn.functional.pad(tokens.new_ones(tokens.shape[:2]), (0, num_padding))
        return self.x_embedder(nn.functional.pad(tokens, (0, 0, 0, num_padding))), mask

    def _rotary(self, rows: int, columns: int, num_image: int, num_text: int, device: torch.device) -> torch.Tensor:
        """Return the rotations of all tokens: an image's by row and column, padding and text at the origin."""
        ids = torch.zeros(1, num_image + num_text, 3, device=device)
        ids[:, : rows * columns, 1] = torch.arange(rows, device=device).repeat_interleave(columns).float()
        ids[:, : rows * columns, 2] = torch.arange(columns, device=device).repeat(rows).float()
        rotary: torch.Tensor = self.pe_embedder(ids)
        return rotary
