"""CLIP text states for prompts of any length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from modules.families.parts.clip_tokens import ClipTokenizer
from modules.families.parts.token_rows import ExtendedEmbedding
from modules.system.devices import tensor_on

_SMALLEST_MEAN = 1e-3  # of the standard deviation; a smaller mean is a matter of rounding
_OPENAI_ACTIVATION = "quick_gelu"


@dataclass(frozen=True, eq=False)
class TextStates:
    """A text encoder's output for B prompts: states (B, 77 * chunks, D), pooled (B, E) if it has a projection."""

    states_BLD: torch.Tensor
    pooled_BE: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class TextTower:
    """A CLIP text encoder with its tokenizer, and which of its layers the states are taken from.

    `skipped_layers` counts the last layers left out; `is_normed`: the final layer norm is applied to the output of the
    layer before them. SD applies it, SDXL does not (Podell et al. 2023, section 2.1; diffusers' pipelines).
    `is_weighted`: prompts may contain weights, `(word:1.2)`. `masks_padding`: no token attends to the padding behind
    the end token, which changes the states of the padding alone.
    """

    encoder: Any
    tokenizer: ClipTokenizer
    skipped_layers: int
    is_normed: bool
    is_weighted: bool = False
    masks_padding: bool = False

    def num_chunks(self, prompts: Sequence[str]) -> int:
        """Return the number of 77-token chunks that the longest prompt needs."""
        return max(len(self._chunks(p)) for p in prompts)

    def encode(self, forward: Callable[..., Any], prompts: Sequence[str], *, num_chunks: int) -> TextStates:
        """Return the states of prompts, shorter ones padded with empty chunks, longer ones cut; the pooled state is the
        first chunk's.

        `forward` is the (checkpointed) forward pass of the encoder.
        """
        empty = self._chunks("")
        chunked = [self._chunks(p)[:num_chunks] for p in prompts]
        filled = [chunk for chunks in chunked for chunk in chunks + empty * (num_chunks - len(chunks))]
        device = next(self.encoder.parameters()).device
        ids_NL = tensor_on([ids for ids, _ in filled], device, torch.long)  # N = B * chunks, L = 77
        mask = {"attention_mask": up_to_end(ids_NL, self.tokenizer.end_id)} if self.masks_padding else {}
        if self.skipped_layers == 0 and self.is_normed:
            output = forward(input_ids=ids_NL, **mask)
            states_NLD = output.last_hidden_state
        else:
            output = forward(input_ids=ids_NL, output_hidden_states=True, **mask)
            states_NLD = output.hidden_states[-(self.skipped_layers + 1)]
            if self.is_normed:
                states_NLD = self._text_model.final_layer_norm(states_NLD)
        embedding = self.encoder.get_input_embeddings()
        if isinstance(embedding, ExtendedEmbedding):
            states_NLD = embedding.with_outputs(ids_NL, states_NLD)
        if any(weight != 1 for _, weights in filled for weight in weights):
            states_NLD = weighted_states(states_NLD, tensor_on([weights for _, weights in filled], device))
        pooled_NE = getattr(output, "text_embeds", None)
        return TextStates(
            states_NLD.reshape(len(prompts), -1, states_NLD.shape[-1]),
            None if pooled_NE is None else pooled_NE[::num_chunks],
        )

    def with_embeddings(self, ids: Mapping[str, tuple[int, ...]]) -> TextTower:
        """Return the tower that reads embeddings, whose ids are given by placeholder."""
        return replace(self, tokenizer=self.tokenizer.with_embeddings(ids))

    def embedding_states(self, forward: Callable[..., Any], placeholder: str) -> torch.Tensor:
        """Return the states (N, D) at the places of an embedding, in a prompt of it alone, in float32."""
        states_1LD = self.encode(forward, [placeholder], num_chunks=1).states_BLD
        return states_1LD[0, 1 : 1 + len(self.tokenizer.embeddings[placeholder])].float().clone()

    def reaches(self, name: str) -> bool:
        """Return whether a loss on this tower's output can reach the module of this dotted name in the encoder.

        It reaches every layer where the pooled state is used, which comes from the last layer. Otherwise it does not
        reach the skipped layers, nor the norm and the projection after them.
        """
        if hasattr(self.encoder, "text_projection"):
            return True
        steps = name.split(".")
        if "layers" in steps:
            num_layers = int(self.encoder.config.num_hidden_layers)
            return int(steps[steps.index("layers") + 1]) < num_layers - self.skipped_layers
        return self.is_normed or "final_layer_norm" not in steps

    def identity(self) -> str:
        """Return everything but the encoder's weights that affects how a prompt is encoded."""
        return f"{self.tokenizer.identity()}|skip{self.skipped_layers}{'|weighted' if self.is_weighted else ''}"

    def _chunks(self, prompt: str) -> list[tuple[list[int], list[float]]]:
        """Return the chunks of a prompt, each with the weight of every token."""
        if self.is_weighted:
            return self.tokenizer.weighted_chunks(prompt)
        return [(ids, []) for ids in self.tokenizer.chunks(prompt)]

    @property
    def _text_model(self) -> Any:
        # transformers 5.6 dropped the inner `text_model` of encoders without a projection; older ones still have it.
        return getattr(self.encoder, "text_model", self.encoder)


def up_to_end(ids_NL: torch.Tensor, end_id: int) -> torch.Tensor:
    """Return 1 for the tokens of chunks up to the end token, 0 for the padding."""
    is_end_NL = (ids_NL == end_id).long()
    return (is_end_NL.cumsum(dim=1) - is_end_NL == 0).long()


def pooled_states(
    encoder: Any, tokenizer: ClipTokenizer, forward: Callable[..., Any], prompts: Sequence[str]
) -> torch.Tensor:
    """Return CLIP's pooled states (B, E) of prompts, of which it reads the first 75 tokens."""
    ids_BL = tensor_on(
        [tokenizer.chunks(prompt)[0] for prompt in prompts], next(encoder.parameters()).device, torch.long
    )
    pooled_BE: torch.Tensor = forward(input_ids=ids_BL).pooler_output
    return pooled_BE


def weighted_states(states_NLD: torch.Tensor, weights_NL: torch.Tensor) -> torch.Tensor:
    """Return the states of chunks, each multiplied by the weight of its token.

    As in A1111 and in diffusers' community pipelines for long weighted prompts, a chunk is then scaled so that its mean
    stays what it was, unless the mean is nearly 0 compared to the states. A chunk whose weights are all 1 does not
    change.
    """
    is_changed_N = (weights_NL != 1).any(dim=1)
    plain_NLD = states_NLD.float()
    weighted_NLD = plain_NLD * weights_NL[:, :, None]
    mean_N, new_mean_N = plain_NLD.mean(dim=(1, 2)), weighted_NLD.mean(dim=(1, 2))
    is_scaled_N = torch.minimum(mean_N.abs(), new_mean_N.abs()) > _SMALLEST_MEAN * plain_NLD.std(dim=(1, 2))
    scale_N = torch.where(is_scaled_N, mean_N, 1.0) / torch.where(is_scaled_N, new_mean_N, 1.0)
    scaled_NLD = (weighted_NLD * scale_N[:, None, None]).to(states_NLD.dtype)
    return torch.where(is_changed_N[:, None, None], scaled_NLD, states_NLD)


def is_open_clip(encoder: Any) -> bool:
    """Return whether an encoder was trained by OpenCLIP, by its activation: those pad with zeros, OpenAI's with "end".

    Ilharco et al. 2021 for the models of SD 2.x and SDXL's second encoder (plain GELU); Radford et al. 2021 for CLIP
    ViT-L/14 (the quick approximation of it).
    """
    return bool(encoder.config.hidden_act != _OPENAI_ACTIVATION)
