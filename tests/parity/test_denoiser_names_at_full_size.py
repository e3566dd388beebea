"""The layouts of denoiser files at the published sizes: every weight has a name, and diffusers reads the same ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers.loaders import single_file_utils as theirs

from modules.families.parts.single_file.moves import from_original, to_original
from modules.families.registry import FAMILIES, files_of, published_models
from modules.formats.lazy_tensors import lazy_state
from modules.system.factories import load_factory
from tests.builders.runs import assert_equal_tensors

CONVERTERS: dict[str, Callable[..., dict[str, torch.Tensor]]] = {
    "anima": theirs.convert_cosmos_transformer_checkpoint_to_diffusers,
    "chroma": theirs.convert_chroma_transformer_checkpoint_to_diffusers,
    "ernie_image": theirs.convert_ernie_image_transformer_checkpoint_to_diffusers,
    "flux": theirs.convert_flux_transformer_checkpoint_to_diffusers,
    "flux2": theirs.convert_flux2_transformer_checkpoint_to_diffusers,
    "flux2_klein": theirs.convert_flux2_transformer_checkpoint_to_diffusers,
    "flux3": theirs.convert_flux3_transformer_checkpoint_to_diffusers,
    "hidream": theirs.convert_hidream_transformer_to_diffusers,
    "hunyuan_video": theirs.convert_hunyuan_video_transformer_to_diffusers,
    "krea2": theirs.convert_krea2_transformer_checkpoint_to_diffusers,
    "lumina2": theirs.convert_lumina2_to_diffusers,
    "qwen_image21": theirs.convert_qwen_image21_transformer_checkpoint_to_diffusers,
    "sana": theirs.convert_sana_transformer_to_diffusers,
    "sd3": theirs.convert_sd3_transformer_checkpoint_to_diffusers,
    "stable_cascade": theirs.convert_stable_cascade_unet_single_file_to_diffusers,
    "z_image": theirs.convert_z_image_transformer_checkpoint_to_diffusers,
}
_UNUSED = {"sana": ("pos_embed", "y_embedder.y_embedding")}  # which the published file has, and diffusers removes
_WITH_PREFIX = ("anima",)  # whose converter removes it
PUBLISHED = [model for model in published_models() if files_of(model.family).denoiser_file is not None]


def numbered_rows(denoiser: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return weights of the number of rows of a denoiser's in one column, so that the largest take little memory."""
    state, start = {}, 0
    for name, tensor in denoiser.state_dict().items():
        rows = torch.arange(start, start + (tensor.shape[0] if tensor.dim() else 1), dtype=torch.float64)
        start += len(rows)
        state[name] = rows.reshape(-1, *[1] * (tensor.dim() - 1)) if tensor.dim() else rows[0]
        if tensor.dim() == 2 and name.endswith("scale_shift_table"):  # which diffusers divides by columns
            state[name] = state[name].expand(tensor.shape).contiguous()
    return state


@pytest.mark.parametrize("model", PUBLISHED, ids=lambda model: model.name)
def test_every_weight_has_the_published_name(one_thread: None, model: Any) -> None:
    """There and back gives the same weights, and diffusers' converter gives them from our file."""
    denoiser = FAMILIES[model.family].denoiser
    file = files_of(model.family).denoiser_file
    assert file is not None
    with torch.device("meta"):
        module = load_factory(denoiser.model.reference).from_config(model.shipped_configs()[denoiser.name])
    state = numbered_rows(module)
    layout = file.layout(dict(module.config))
    assert {slot.key for slot in layout.slots} == state.keys()
    original = {name: tensor.make() for name, tensor in to_original(layout.slots, lazy_state(state)).items()}
    ours = from_original(layout.slots, lazy_state(original))
    assert_equal_tensors({name: tensor.make() for name, tensor in ours.items()}, state)
    if convert := CONVERTERS.get(model.family):
        prefix = layout.prefix if model.family in _WITH_PREFIX else ""
        named = {f"{prefix}{name}": tensor for name, tensor in original.items()}
        named |= {name: torch.zeros(1) for name in _UNUSED.get(model.family, ())}
        assert_equal_tensors(convert(named), state)


def test_every_converter_of_a_family_is_compared() -> None:
    assert set(CONVERTERS) <= {model.family for model in PUBLISHED}
