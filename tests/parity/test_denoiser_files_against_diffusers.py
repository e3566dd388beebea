"""The layouts of files with a denoiser alone are those that diffusers' own converters read."""

from __future__ import annotations

import torch
from diffusers.loaders.single_file_utils import convert_z_image_transformer_checkpoint_to_diffusers

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
