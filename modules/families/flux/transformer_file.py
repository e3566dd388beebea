"""How files contain the transformer: diffusers' names, and the published checkpoints' names, which ComfyUI reads.

The latter have the prefix `model.diffusion_model.` in ComfyUI's checkpoints with all parts, and none in files of the
transformer alone.
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
from modules.families.parts.single_file.transformer_file import transformer_file

_EMBEDDED = 256  # the channels of an embedded timestep or guidance scale, in diffusers' class


def transformer_layers(config: Mapping[str, Any]) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `FluxTransformer2DModel` of this config."""
    width = width_of(config)
    embedders = {"timestep": ("time_in", _EMBEDDED), "text": ("vector_in", int(config["pooled_projection_dim"]))}
    if config.get("guidance_embeds"):
        embedders["guidance"] = ("guidance_in", _EMBEDDED)
    for name, (original, columns) in embedders.items():
        path = f"time_text_embed.{name}_embedder"
        yield LinearLayer(f"{path}.linear_1", f"{original}.in_layer", (width, columns))
        yield LinearLayer(f"{path}.linear_2", f"{original}.out_layer", (width, width))
    yield from end_layers(config)
    yield LinearLayer("norm_out.linear", "final_layer.adaLN_modulation.1", (2 * width, width), swapped=True)
    yield from double_layers(config, has_modulation=True)
    yield from single_layers(config, has_modulation=True)


TRANSFORMER_FILE = transformer_file(
    lambda config: block_slots(config, transformer_layers(config)),
    first=FIRST_BLOCK,
    # Models made from FLUX.1 without modulations in their blocks have all other names, too.
    marks=(".double_blocks.0.img_mod.lin.", ".single_transformer_blocks.0.norm.linear."),
    diffusers_marks=("single_transformer_blocks.",),
)
