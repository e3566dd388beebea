"""The buffer that files of Gemma 2 do not have (Riviere et al. 2024)."""

from __future__ import annotations

from typing import Any

import torch


def fill_buffers(encoder: Any) -> None:
    """Make the factor of the embeddings, the root of their width, which transformers keeps as a buffer: in float32,
    since it is cast to the dtype of the weights for each use.
    """
    embedding = encoder.embed_tokens
    embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale)
