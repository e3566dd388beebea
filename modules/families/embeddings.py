"""An embedding of a run: a placeholder, and its vectors for each text encoder (Gal et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from modules.formats.adapter_names import BUNDLED_EMBEDDING, OUTPUT_SUFFIX


@dataclass(frozen=True, eq=False)
class Embedding:
    """An embedding: its rows (N, D) by text encoder, which become new rows of the encoder's token embedding.

    `key` identifies it in backups. `outputs` are the rows at the encoders' output, for an output embedding. `trained`
    are the names of the trained parameters, all in `parameters`; `norms` the typical norm of each encoder's vocabulary.
    """

    placeholder: str
    key: str
    rows: Mapping[str, nn.Parameter]
    outputs: Mapping[str, nn.Parameter]
    trained: frozenset[str]
    norms: Mapping[str, float]

    @property
    def unit(self) -> str:
        """The name of its training unit."""
        return f"embedding:{self.key}"

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """All of its parameters by full name."""
        inputs = {f"{self.unit}.{part}": rows for part, rows in self.rows.items()}
        return inputs | {f"{self.unit}.{part}.output": rows for part, rows in self.outputs.items()}

    def tensors(self, values: Mapping[str, torch.Tensor], names: Mapping[str, str]) -> dict[str, torch.Tensor]:
        """Return its tensors for a file: the trained ones from `values`, by `names` of the text encoders' tensors."""
        inputs = {names[part]: values.get(f"{self.unit}.{part}", rows.detach()) for part, rows in self.rows.items()}
        return inputs | {
            names[part] + OUTPUT_SUFFIX: values.get(f"{self.unit}.{part}.output", rows.detach())
            for part, rows in self.outputs.items()
        }


def bundled_embeddings(
    embeddings: Sequence[Embedding], values: Mapping[str, torch.Tensor], names: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    """Return the tensors of embeddings in a LoRA file, as OneTrainer, A1111 and Forge name them."""
    return {
        f"{BUNDLED_EMBEDDING}{e.placeholder}.{name}": t
        for e in embeddings
        for name, t in e.tensors(values, names).items()
    }
