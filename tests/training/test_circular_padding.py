"""Circular padding: rolling what goes in rolls what comes out, in the UNet, in the VAE and with every adapter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from modules.adapters.lora_layers import LoraShape, attach_lora
from modules.adapters.protocol import Adapter, kind_of, target_layers
from modules.adapters.registry import ADAPTERS
from modules.families.parts.circular_padding import is_circular, pad_circularly
from modules.families.protocol import ModelFamily
from modules.settings.layer_filter import EVERYTHING
from tests.builders.configs import laid_over, small_config
from tests.builders.pipelines import load_tiny
from trainer.run.machine import machine_of
from trainer.run.model import encoder_identities, load_model
from trainer.run.reading import load_family

Function = Callable[[torch.Tensor], torch.Tensor]
LATENTS = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(1))


def circular(model: Path) -> ModelFamily:
    family: ModelFamily = load_tiny(model)
    for name in ("unet", "vae"):
        pad_circularly(family.parts[name].module)
    return family


def predict_of(family: ModelFamily) -> Function:
    conditioning = family.encode_prompts(["a tile"])
    return lambda latents: family.predict(latents, torch.tensor([300]), conditioning)


def assert_rolls(function: Function, given: torch.Tensor, *, by: int, to: int) -> None:
    """Rolling the input `by` elements rolls the output `to` elements, along both axes."""
    with torch.no_grad():
        plain, rolled = function(given), function(given.roll((by, -by), (2, 3)))
    torch.testing.assert_close(rolled, plain.roll((to, -to), (2, 3)), rtol=1e-4, atol=1e-5)


def randomized(parameters: dict[str, nn.Parameter]) -> None:
    generator = torch.Generator().manual_seed(2)
    for parameter in parameters.values():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1


def test_a_prediction_rolls_with_its_latents(tiny_sd: Path) -> None:
    assert_rolls(predict_of(circular(tiny_sd)), LATENTS, by=8, to=8)
    with pytest.raises(AssertionError):  # which the plain model's does not
        assert_rolls(predict_of(load_tiny(tiny_sd)), LATENTS, by=8, to=8)


@pytest.mark.parametrize("kind", ["pissa", *(name for name, spec in ADAPTERS.items() if spec.factory)])
def test_an_adapter_of_convolutions_rolls_too(tiny_sd: Path, kind: str) -> None:
    family = circular(tiny_sd)
    part = family.parts["unet"]
    targets = target_layers(part.module, "denoiser", layers=EVERYTHING, reaches=part.reaches)
    plain = predict_of(family)(LATENTS)
    if kind == "pissa":
        shape = LoraShape(2, 2.0, 0.0, torch.float32)
        adapter: Adapter = attach_lora("unet", part.module, targets, shape, seed=3, principal=targets)
    else:
        spec = ADAPTERS[kind]
        adapter = kind_of(spec).attach("unet", part.module, targets, spec.settings(), seed=3)
    randomized(adapter.parameters())
    assert_rolls(predict_of(family), LATENTS, by=8, to=8)
    assert not torch.allclose(predict_of(family)(LATENTS), plain, atol=1e-2)


def test_an_image_and_its_latents_roll_too(tiny_sd: Path) -> None:
    family = circular(tiny_sd)
    factor = family.spec.latents.factor
    images = torch.rand(1, 3, 8 * factor, 8 * factor, generator=torch.Generator().manual_seed(1)) * 2 - 1
    assert_rolls(family.encode_images, images, by=2 * factor, to=2)
    with torch.no_grad():
        latents = family.encode_images(images)
    plain, rolled = family.decode(latents), family.decode(latents.roll((2, -2), (2, 3)))
    torch.testing.assert_close(rolled, plain.roll((2 * factor, -2 * factor), (2, 3)), rtol=1e-4, atol=1e-4)


def test_the_setting_changes_a_run_and_the_names_of_its_cache(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, model=tiny_sd, images=images)
    tiles = laid_over(config, {"model": {"circular_padding": True}})
    family = load_family(tiles.model, tiles.part)
    assert [name for name, part in family.parts.items() if is_circular(part.module)] == ["unet", "vae"]
    assert_rolls(predict_of(load_model(tiles, machine_of(tiles.general, "float32")).family), LATENTS, by=8, to=8)
    one, other = (encoder_identities(c, machine_of(c.general, "float32")) for c in (config, tiles))
    assert one.images != other.images
    assert one.captions == other.captions
    plain = load_family(config.model, config.part).parts
    for name, part in family.parts.items():  # names of weights stay
        assert part.module.state_dict().keys() == plain[name].module.state_dict().keys()
