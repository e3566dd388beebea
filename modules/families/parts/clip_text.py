"""CLIP text states for prompts of any length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from transformers.models.clip.modeling_clip import CLIPEncoderLayer

from modules.families.parts.clip_tokens import ClipTokenizer

BLOCK_TYPES: tuple[type[nn.Module], ...] = (CLIPEncoderLayer,)


def encode_clip(
    encoder: Callable[..., object],
    final_norm: nn.Module,
    tokenizer: ClipTokenizer,
    prompts: Sequence[str],
    *,
    clip_skip: int,
    device: torch.device,
) -> torch.Tensor:
    """Return the hidden states (B, 77 * chunks, D) of prompts, the shorter ones filled up with empty chunks.

    `encoder` is the (checkpointed) text model; `clip_skip` counts the last layers left out, and the final layer norm
    is applied to what the layer before them gives, as diffusers' pipelines do.
    """
    chunked = [tokenizer.chunks(p) for p in prompts]
    num_chunks = max(len(c) for c in chunked)
    empty = tokenizer.chunks("")
    ids = [chunk for chunks in chunked for chunk in chunks + empty * (num_chunks - len(chunks))]
    ids_NL = torch.tensor(ids, dtype=torch.long, device=device)  # N = B * chunks, L = 77
    if clip_skip == 0:
        states_NLD = encoder(input_ids=ids_NL).last_hidden_state  # type: ignore[attr-defined]
    else:
        output = encoder(input_ids=ids_NL, output_hidden_states=True)
        states_NLD = final_norm(output.hidden_states[-(clip_skip + 1)])  # type: ignore[attr-defined]
    states_BLD: torch.Tensor = states_NLD.reshape(len(prompts), -1, states_NLD.shape[-1])
    return states_BLD


def clip_reach(num_layers: int, clip_skip: int) -> Callable[[str], bool]:
    """Return which modules of a CLIP text model a loss on its states can reach: not the layers that are skipped.

    Names are dotted, with or without the "text_model." that transformers dropped in 5.6.
    """
    skipped = {str(i) for i in range(num_layers - clip_skip, num_layers)}

    def reaches(name: str) -> bool:
        steps = name.split(".")
        if "layers" not in steps:
            return "text_projection" not in steps
        return steps[steps.index("layers") + 1] not in skipped

    return reaches
