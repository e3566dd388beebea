"""The layers of an adapter file that one type of adapter can train."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from modules.families.spec import LoraNaming
from modules.formats.adapter_file import AdapterFile, adapter_file
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import BUNDLED_EMBEDDING
from modules.system.errors import DarkroomError


def layers_of(
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    naming: LoraNaming,
    *,
    label: str,
    factors: Collection[str],
) -> list[AdapterLayer]:
    """Return the layers of a file of any form. `label` is what people call the type of adapter.

    Bundled embeddings are not layers. Raises DarkroomError for layers that the model does not have, and for layers of
    another type: with other factors than `factors`.
    """
    content = adapter_file(tensors, metadata, naming.targets)
    _require_placed(content, label)
    for layer in content.layers:
        if others := sorted(layer.factors.keys() - set(factors)):
            raise DarkroomError(
                f"The file is not a plain {label}: {others[0]} of {layer.part}.{layer.path} is of another kind.",
                advice=f"Choose a file that contains only {label} layers.",
            )
    return list(content.layers)


def _require_placed(content: AdapterFile, label: str) -> None:
    if content.unplaced:
        raise DarkroomError(
            f"The {label} has {len(content.unplaced)} layers this model does not have; the first is "
            f"{content.unplaced[0]}.",
            advice="Choose a file that was trained on a model of this kind.",
        )
    rest = sorted(n for n in content.extra_tensors if not n.startswith(BUNDLED_EMBEDDING))
    if rest or not content.layers:
        what = f"the tensor {rest[0]} is of another kind" if rest else "it has no layers"
        raise DarkroomError(f"The file is not a plain {label}: {what}.")
