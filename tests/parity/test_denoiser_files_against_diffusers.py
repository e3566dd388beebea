"""The layouts of files with a denoiser alone are those that diffusers' own converters and loaders read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.loaders.single_file_utils import (
    convert_chroma_transformer_checkpoint_to_diffusers,
    convert_flux2_transformer_checkpoint_to_diffusers,
    convert_flux_transformer_checkpoint_to_diffusers,
    convert_krea2_transformer_checkpoint_to_diffusers,
    convert_sd3_transformer_checkpoint_to_diffusers,
    convert_z_image_transformer_checkpoint_to_diffusers,
)
from diffusers.models.transformers.transformer_chroma import ChromaTransformer2DModel
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.models.transformers.transformer_flux2 import Flux2Transformer2DModel
from diffusers.models.transformers.transformer_z_image import ZImageTransformer2DModel
from safetensors.torch import load_file

from modules.config.schema import Config
from modules.families.chroma import files as chroma
from modules.families.flux import files as flux
from modules.families.krea2 import files as krea2
from modules.families.parts.flux2 import files as flux2
from modules.families.parts.single_file.moves import from_original, to_original
from modules.families.sd3 import files as sd3
from modules.families.z_image.files import TRANSFORMER_FILE
from modules.formats.lazy_tensors import lazy_state
from tests.builders import krea2 as krea2_models
from tests.builders.configs import laid_over
from tests.builders.pipelines import load_tiny
from tests.builders.runs import assert_equal_tensors
from tests.builders.sd3 import tiny_transformer as sd3_transformer
from tests.builders.z_image import tiny_transformer
from trainer.export.exporter import SaveMoment
from trainer.export.model import ModelExporter


def test_the_transformer_in_comfyuis_names_is_read_by_diffusers(one_thread: None) -> None:
    torch.manual_seed(0)
    transformer = tiny_transformer()
    state = dict(transformer.state_dict())
    layout = TRANSFORMER_FILE.layout(dict(transformer.config))
    original = to_original(layout.slots, lazy_state(state))
    named = {f"{layout.prefix}{name}": tensor.make() for name, tensor in original.items()}
    assert_equal_tensors(convert_z_image_transformer_checkpoint_to_diffusers(dict(named)), state)
    ours = from_original(layout.slots, original)
    assert_equal_tensors({name: tensor.make() for name, tensor in ours.items()}, state)


def test_the_original_layout_of_krea_2_is_read_by_diffusers(one_thread: None) -> None:
    torch.manual_seed(0)
    transformer = krea2_models.tiny_transformer()
    state, config = dict(transformer.state_dict()), dict(transformer.config)
    assert {f"{layer.path}.weight": layer.shape for layer in krea2.transformer_layers(config)} == {
        f"{name}.weight": tuple(layer.weight.shape)
        for name, layer in transformer.named_modules()
        if isinstance(layer, torch.nn.Linear)
    }
    layout = krea2.TRANSFORMER_FILE.layout(config)
    original = {name: tensor.make() for name, tensor in to_original(layout.slots, lazy_state(state)).items()}
    assert original["blocks.0.mod.lin"].shape == (6 * transformer.hidden_size,)
    assert_equal_tensors(convert_krea2_transformer_checkpoint_to_diffusers(dict(original)), state)
    ours = from_original(layout.slots, lazy_state(original))
    assert_equal_tensors({name: tensor.make() for name, tensor in ours.items()}, state)


DOUBLE_STREAM: dict[str, tuple[Any, Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "flux": (
        partial(FluxTransformer2DModel, guidance_embeds=True),
        flux.transformer_layers,
        flux.TRANSFORMER_FILE.layout,
        convert_flux_transformer_checkpoint_to_diffusers,
    ),
    "chroma": (
        ChromaTransformer2DModel,
        chroma.transformer_layers,
        chroma.TRANSFORMER_FILE.layout,
        convert_chroma_transformer_checkpoint_to_diffusers,
    ),
    "flux2": (
        Flux2Transformer2DModel,
        flux2.transformer_layers,
        flux2.TRANSFORMER_FILE.layout,
        convert_flux2_transformer_checkpoint_to_diffusers,
    ),
}


@pytest.mark.parametrize("name", DOUBLE_STREAM)
def test_the_original_layout_of_double_and_single_blocks_is_read_by_diffusers(one_thread: None, name: str) -> None:
    """diffusers' converter divides at the published width, so the matrices here have all their rows in one column."""
    kind, layers, layout_of, convert = DOUBLE_STREAM[name]
    with torch.device("meta"):
        transformer = kind(num_layers=2, num_single_layers=2)
    shapes = {name: tuple(tensor.shape) for name, tensor in transformer.state_dict().items()}
    config = dict(transformer.config)
    assert {f"{layer.path}.weight": layer.shape for layer in layers(config)} == {
        name: shape for name, shape in shapes.items() if len(shape) == 2
    }
    state = {}
    for number, (name, shape) in enumerate(shapes.items()):
        rows = torch.arange(shape[0]) + number * 100_000
        state[name] = rows[:, None] if len(shape) == 2 else rows
    layout = layout_of(config)
    original = {name: tensor.make() for name, tensor in to_original(layout.slots, lazy_state(state)).items()}
    assert_equal_tensors(convert(dict(original)), state)
    ours = from_original(layout.slots, lazy_state(original))
    assert_equal_tensors({name: tensor.make() for name, tensor in ours.items()}, state)


def test_the_original_layout_of_joint_blocks_is_read_by_diffusers(one_thread: None) -> None:
    """With a block that has a second attention, and the last one, which has fewer layers and other halves."""
    torch.manual_seed(0)
    transformer = sd3_transformer()
    state = dict(transformer.state_dict())
    config = dict(transformer.config)
    matrices = {n.removesuffix(".weight"): tuple(t.shape) for n, t in state.items() if n.endswith(".weight")}
    assert {layer.path: layer.shape for layer in sd3.transformer_layers(config)} == {
        name: shape for name, shape in matrices.items() if len(shape) > 1
    }
    layout = sd3.TRANSFORMER_FILE.layout(config)
    original = to_original(layout.slots, lazy_state(state))
    named = {f"{layout.prefix}{name}": tensor.make() for name, tensor in original.items()}
    assert_equal_tensors(convert_sd3_transformer_checkpoint_to_diffusers(dict(named)), state)
    ours = from_original(layout.slots, original)
    assert_equal_tensors({name: tensor.make() for name, tensor in ours.items()}, state)


@pytest.mark.parametrize("dtype", ["float32", "float8"])
def test_a_saved_file_is_read_by_diffusers_and_here(dtype: str, tiny_z_image: Path, tmp_path: Path) -> None:
    path, family = tmp_path / "tuned.safetensors", load_tiny(tiny_z_image)
    output = {"dtype": dtype, "model_format": "single_file"}
    config = laid_over(Config(), {"model": {"family": "z_image"}, "training": {"trains": "full"}, "output": output})
    ModelExporter(family, config).save(path, {}, SaveMoment(datetime(2026, 1, 2), step=1, epoch=1))
    theirs = ZImageTransformer2DModel.from_single_file(
        path, config=str(tiny_z_image / "transformer"), local_files_only=True, torch_dtype=torch.float32
    ).state_dict()
    ours = load_tiny(tiny_z_image, part_files={"transformer": str(path)}).denoiser.state_dict()
    assert_equal_tensors(dict(theirs), dict(ours))
    for name, tensor in family.denoiser.state_dict().items():
        torch.testing.assert_close(ours[name], tensor, rtol=0.0626 if dtype == "float8" else 0, atol=2**-10)
    stored = load_file(path)
    if dtype == "float8":
        start = "model.diffusion_model."
        assert stored[f"{start}layers.0.attention.qkv.weight"].dtype == torch.float8_e4m3fn
        for name in (
            "x_pad_token",
            "x_embedder.weight",
            "layers.0.adaLN_modulation.0.weight",
            "t_embedder.mlp.0.weight",
        ):
            assert stored[f"{start}{name}"].dtype == torch.float16
