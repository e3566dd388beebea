"""How files contain the transformer: diffusers' names, and the published checkpoints' names, which ComfyUI reads.

The layout is FLUX.1's without modulations in the blocks; the approximator makes those (diffusers'
`convert_chroma_transformer_checkpoint_to_diffusers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts.double_stream import (
    FIRST_BLOCK,
    LinearLayer,
    block_slots,
    double_layers,
    end_layers,
    single_layers,
    width_of,
)
from modules.families.parts.single_file.slots import Slot
from modules.families.parts.single_file.transformer_file import transformer_file

_APPROXIMATOR = "distilled_guidance_layer"
_IN_LAYERS = {"linear_1": "in_layer", "linear_2": "out_layer"}


def transformer_layers(config: Mapping[str, Any]) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `ChromaTransformer2DModel` of this config."""
    width, inner = width_of(config), int(config["approximator_hidden_dim"])
    first = (inner, int(config["approximator_num_channels"]))
    yield LinearLayer(f"{_APPROXIMATOR}.in_proj", f"{_APPROXIMATOR}.in_proj", first)
    for index in range(int(config["approximator_layers"])):
        path = f"{_APPROXIMATOR}.layers.{index}"
        for ours, theirs in _IN_LAYERS.items():
            yield LinearLayer(f"{path}.{ours}", f"{path}.{theirs}", (inner, inner))
    yield LinearLayer(f"{_APPROXIMATOR}.out_proj", f"{_APPROXIMATOR}.out_proj", (width, inner))
    yield from end_layers(config)
    yield from double_layers(config, has_modulation=False)
    yield from single_layers(config, has_modulation=False)


def _slots(config: Mapping[str, Any]) -> Iterator[Slot]:
    yield from block_slots(config, transformer_layers(config))
    for index in range(int(config["approximator_layers"])):
        path = f"{_APPROXIMATOR}.norms.{index}"
        yield Slot(f"{path}.weight", f"{path}.scale")


def fill_buffers(transformer: Any) -> None:
    """Make the buffer that files do not have: the embedded numbers of the modulations."""
    embedding, config = transformer.time_text_embed, transformer.config
    num_modulations = 3 * config.num_single_layers + 2 * 6 * config.num_layers + 2
    made = type(embedding)(num_channels=config.approximator_num_channels // 4, out_dim=num_modulations)
    embedding.mod_proj = made.mod_proj


TRANSFORMER_FILE = transformer_file(
    _slots, first=FIRST_BLOCK, marks=(f".{_APPROXIMATOR}.",), diffusers_marks=("single_transformer_blocks.",)
)
