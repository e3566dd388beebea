"""The files of FLUX.2's models: the layers that adapter files can change, and what programs make of their names.

The published checkpoints have the queries, keys and values of double blocks in one matrix; kohya's and musubi's names
are theirs, ComfyUI's, too, behind `diffusion_model.`; diffusers' have the prefix `transformer.`.
"""

from __future__ import annotations

from collections.abc import Mapping

from modules.families.parts.double_stream import NAMING_ROWS as _OF_DOUBLE_STREAMS
from modules.families.parts.double_stream import double_stream_targets
from modules.families.parts.flux2.transformer_file import TRANSFORMER_FILE, transformer_layers
from modules.families.parts.single_file.transformer_file import single_transformer
from modules.families.published import Configs
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.program_table import ALL, SGM_NAMES, UNMEASURED, Answer, Row, none

# What makes a model different from the published one.
SINGLE_FILE = single_transformer(
    TRANSFORMER_FILE,
    *("num_layers", "num_single_layers", "num_attention_heads", "attention_head_dim", "joint_attention_dim"),
    *("axes_dims_rope", "mlp_ratio", "guidance_embeds"),
)
# diffusers was measured at toy size (2026-11-28); ComfyUI's are the names in its maps.
_ROW: Row = {**UNMEASURED, "ComfyUI": ALL, "diffusers": ALL}
_NOT_OUTSIDE = none("does not map kohya's names outside the blocks")
NAMING_ROWS: Mapping[str, Row] = {
    **dict.fromkeys(_OF_DOUBLE_STREAMS, UNMEASURED),
    SGM_NAMES: {**_ROW, "diffusers": {"": ALL, "outside": _NOT_OUTSIDE}},
    "ComfyUI, original names": {**_ROW, "diffusers": Answer("unknown", "raises an error if the file has alphas")},
    "PEFT, denoiser": _ROW,
}


def transformer_targets(configs: Configs) -> AdapterTargets:
    """Return the layers that adapter files can change, from the configs of a model's parts."""
    return AdapterTargets.of(*double_stream_targets("transformer", transformer_layers(configs["transformer"])))
