"""The layouts of files with a denoiser alone are those that diffusers' own converters read."""

from __future__ import annotations

import torch
from diffusers.loaders.single_file_utils import (
    convert_flux_transformer_checkpoint_to_diffusers,
    convert_z_image_transformer_checkpoint_to_diffusers,
)
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel

from modules.families.flux.transformer_file import transformer_layers
from modules.families.flux.transformer_file import transformer_layout as double_stream_layout
from modules.families.parts.single_file.moves import from_original, to_original
from modules.families.z_image.transformer_file import transformer_layout
from modules.formats.lazy_tensors import lazy_state
from tests.builders.runs import assert_equal_tensors
from tests.builders.z_image import tiny_transformer


def test_the_transformer_in_comfyuis_names_is_read_by_diffusers(one_thread: None) -> None:
    torch.manual_seed(0)
    transformer = tiny_transformer()
    state = dict(transformer.state_dict())
    layout = transformer_layout(dict(transformer.config))
    original = to_original(layout.slots, lazy_state(state))
    named = {f"{layout.prefix}{name}": tensor.make() for name, tensor in original.items()}
    assert_equal_tensors(convert_z_image_transformer_checkpoint_to_diffusers(dict(named)), state)
    ours = from_original(layout.slots, original)
    assert_equal_tensors({name: tensor.make() for name, tensor in ours.items()}, state)


def test_the_original_layout_of_double_and_single_blocks_is_read_by_diffusers(one_thread: None) -> None:
    """diffusers' converter divides at the published width, so the matrices here have all their rows in one column."""
    with torch.device("meta"):
        transformer = FluxTransformer2DModel(num_layers=2, num_single_layers=2, guidance_embeds=True)
    shapes = {name: tuple(tensor.shape) for name, tensor in transformer.state_dict().items()}
    config = dict(transformer.config)
    assert {f"{layer.path}.weight": layer.shape for layer in transformer_layers(config)} == {
        name: shape for name, shape in shapes.items() if len(shape) == 2
    }
    state = {}
    for number, (name, shape) in enumerate(shapes.items()):
        rows = torch.arange(shape[0]) + number * 100_000
        state[name] = rows[:, None] if len(shape) == 2 else rows
    layout = double_stream_layout(config)
    original = {name: tensor.make() for name, tensor in to_original(layout.slots, lazy_state(state)).items()}
    assert_equal_tensors(convert_flux_transformer_checkpoint_to_diffusers(dict(original)), state)
    ours = from_original(layout.slots, lazy_state(original))
    assert_equal_tensors({name: tensor.make() for name, tensor in ours.items()}, state)
