"""The files of Chroma1: folders, the names of layers in LoRA files, and files of the transformer alone.

kohya's trainers name the transformer's layers as the published checkpoints do, with the projections of queries, keys
and values in one matrix; diffusers' names have the prefix `transformer.`. The layout of these checkpoints is FLUX.1's
without modulations in the blocks; the approximator makes those (diffusers'
`convert_chroma_transformer_checkpoint_to_diffusers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts import double_stream
from modules.families.parts.linear_layers import LinearLayer, width_of
from modules.families.parts.single_file import transformer_file
from modules.families.parts.single_file.slots import Slot
from modules.families.parts.t5_layers import targets_with_t5
from modules.families.published import PublishedModel
from modules.formats.program_table import ALL, UNMEASURED, Row, none, refuses

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
    yield from double_stream.end_layers(config)
    yield from double_stream.double_layers(config, has_modulation=False)
    yield from double_stream.single_layers(config, has_modulation=False)


def _slots(config: Mapping[str, Any]) -> Iterator[Slot]:
    yield from double_stream.block_slots(config, transformer_layers(config))
    for index in range(int(config["approximator_layers"])):
        path = f"{_APPROXIMATOR}.norms.{index}"
        yield Slot(f"{path}.weight", f"{path}.scale")


def fill_buffers(transformer: Any) -> None:
    """Make the buffer that files do not have: the embedded numbers of the modulations."""
    embedding, config = transformer.time_text_embed, transformer.config
    num_modulations = 3 * config.num_single_layers + 2 * 6 * config.num_layers + 2
    made = type(embedding)(num_channels=config.approximator_num_channels // 4, out_dim=num_modulations)
    embedding.mod_proj = made.mod_proj


TRANSFORMER_FILE = transformer_file.transformer_file(
    _slots,
    first=double_stream.FIRST_BLOCK,
    marks=(f".{_APPROXIMATOR}.",),
    diffusers_marks=("single_transformer_blocks.",),
)


# What makes a model different from the published one.
_SHAPING = (
    *("num_layers", "num_single_layers", "num_attention_heads", "attention_head_dim", "joint_attention_dim"),
    *("approximator_num_channels", "approximator_hidden_dim", "approximator_layers", "axes_dims_rope"),
)
# diffusers was measured on 2026-11-27: its pipeline of Chroma has FLUX.1's loader, whose text encoder is a CLIP.
_OF_T5: Row = {**UNMEASURED, "diffusers": refuses("raises an error for changes of T5: it expects a CLIP there")}
_TEXT_ROWS: Mapping[str, Row] = {
    "kohya, text": {**_OF_T5, "ComfyUI": ALL},
    "PEFT, text": {**_OF_T5, "ComfyUI": none("does not map T5 in this form")},
}


MODEL = PublishedModel(
    name="chroma1",
    label="Chroma1",
    family="chroma",
    architecture="chroma",
    kohya_version="chroma",
    implementation="https://github.com/lodestone-rock/flow",
    adapter_targets=targets_with_t5(transformer_layers),
    comfy_encoders={"text_encoder": "t5xxl"},
    repository="lodestones/Chroma1-HD",
    pipelines={"": "ChromaPipeline"},
    single_file=transformer_file.single_denoiser(TRANSFORMER_FILE, *_SHAPING),
    embedding_tensors=("t5xxl",),
    programs=("ComfyUI", "Forge", "diffusers"),
    naming_rows={**double_stream.NAMING_ROWS, **_TEXT_ROWS},
    extra_rows=transformer_file.ONE_WIDTH,
)
FILES = transformer_file.files_of_one_model(MODEL, TRANSFORMER_FILE, "chroma")
