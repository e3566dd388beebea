"""New rows of a text encoder's token embedding: the vectors of embeddings (textual inversion, Gal et al. 2022).

The vocabulary's matrix stays as it is. New rows are parameters of their own, so that only they have a gradient and
optimizer state, and every other row is bit for bit the same by construction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn


class ExtendedEmbedding(nn.Embedding):
    """A token embedding with new rows: row n has the id -1 - n.

    The ids are negative, because encoders whose config has the end token 2 take the pooled state from the largest id.
    The new rows are parameters of this module, so that they move with its part. They are not in its state dict, because
    the model's files do not have them.
    """

    def __init__(self, vocabulary: nn.Embedding) -> None:
        """`vocabulary` (V, D) keeps its own parameter."""
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = vocabulary.num_embeddings, vocabulary.embedding_dim
        self.padding_idx, self.max_norm, self.norm_type = vocabulary.padding_idx, None, vocabulary.norm_type
        self.scale_grad_by_freq, self.sparse = vocabulary.scale_grad_by_freq, vocabulary.sparse
        self.weight = vocabulary.weight
        self._names: list[str] = []
        self._outputs: dict[int, str] = {}  # the name of the rows at the encoder's output, by their first number

    def add(self, rows_ND: nn.Parameter) -> tuple[int, ...]:
        """Add rows (N, D) and return their ids."""
        first = sum(len(rows) for rows in self._rows())
        name = f"new_rows_{len(self._names)}"
        self.register_parameter(name, rows_ND)
        self._names.append(name)
        return tuple(-1 - n for n in range(first, first + len(rows_ND)))

    def add_outputs(self, ids: Sequence[int], rows_ND: nn.Parameter) -> None:
        """Add rows (N, D) that replace the encoder's states at the places of new ids: an output embedding."""
        first = -1 - ids[0]
        self._outputs[first] = f"output_rows_{first}"
        self.register_parameter(self._outputs[first], rows_ND)

    def with_outputs(self, ids_NL: torch.Tensor, states_NLD: torch.Tensor) -> torch.Tensor:
        """Return an encoder's states of ids, with the rows of output embeddings at their places."""
        for first, name in self._outputs.items():
            rows_ND: torch.Tensor = getattr(self, name)
            numbers_NL = -1 - ids_NL - first
            is_here_NL = (numbers_NL >= 0) & (numbers_NL < len(rows_ND))
            found_NLD = nn.functional.embedding(numbers_NL.clamp(0, len(rows_ND) - 1), rows_ND.to(states_NLD.dtype))
            states_NLD = torch.where(is_here_NL[..., None], found_NLD, states_NLD)
        return states_NLD

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the vectors (..., D) of ids, in the dtype of the vocabulary."""
        known = nn.functional.embedding(ids.clamp(min=0), self.weight)
        rows_ND = torch.cat([rows.to(self.weight.dtype) for rows in self._rows()])
        new = nn.functional.embedding((-1 - ids).clamp(min=0), rows_ND)
        return torch.where((ids < 0)[..., None], new, known)

    def _rows(self) -> list[nn.Parameter]:
        return [getattr(self, name) for name in self._names]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in (*self._names, *self._outputs.values()):
            destination.pop(prefix + name, None)


def extend_embedding(encoder: Any) -> ExtendedEmbedding:
    """Return a text encoder's token embedding, which from now on can have new rows."""
    embedding = encoder.get_input_embeddings()
    if not isinstance(embedding, ExtendedEmbedding):
        embedding = ExtendedEmbedding(embedding)
        encoder.set_input_embeddings(embedding)
    return embedding


def typical_norm(vocabulary_VD: torch.Tensor) -> float:
    """Return the median norm of a vocabulary's vectors."""
    return float(vocabulary_VD.detach().float().norm(dim=-1).median())


def start_rows(
    vocabulary_VD: torch.Tensor, ids: Sequence[int], *, count: int, filler: int, how: str, seed: int
) -> torch.Tensor:
    """Return the first values (count, D) of new rows, in float32.

    `ids` are the tokens of the initial text. `how` is "tokens": their vectors one by one, truncated, or filled with the
    vector of the id `filler` (as in OneTrainer); "mean": the mean of their vectors for each row; or "random": normal
    vectors of the vocabulary's typical norm. Without ids the start is random.
    """
    if how == "random" or not ids:
        drawn_ND = torch.randn(count, vocabulary_VD.shape[1], generator=torch.Generator().manual_seed(seed))
        return nn.functional.normalize(drawn_ND, dim=-1) * typical_norm(vocabulary_VD)
    if how == "mean":
        return vocabulary_VD[list(ids)].detach().float().mean(dim=0, keepdim=True).repeat(count, 1)
    taken = [*ids[:count], *[filler] * (count - len(ids))]
    return vocabulary_VD[taken].detach().float().clone()


def add_embeddings(
    encoders: Mapping[str, Any], rows: Mapping[str, Mapping[str, nn.Parameter]]
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Add the rows of embeddings, by placeholder and encoder, to encoders; return their ids by encoder and placeholder.

    An encoder for which an embedding has no rows reads its placeholder as plain text.
    """
    ids: dict[str, dict[str, tuple[int, ...]]] = {}
    for placeholder, of_encoders in rows.items():
        for name, rows_ND in of_encoders.items():
            ids.setdefault(name, {})[placeholder] = extend_embedding(encoders[name]).add(rows_ND)
    return ids
