"""FLUX.2 with reference images against diffusers' pipelines: one prediction and whole samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from modules.data.buckets import Size
from modules.data.inputs import REFERENCES
from modules.data.references import ReferenceFit
from modules.sampling.denoising_loop import guide, initial_noise, run_denoising_loop, scheduler_for
from modules.sampling.prediction import read_reference_image, with_guidance
from modules.system.devices import CPU
from tests.builders.flux2 import flux2_pipeline, write_flux2_folder
from tests.builders.flux2_klein import flux2_klein_pipeline, write_flux2_klein_folder
from tests.builders.images import draw_image
from tests.builders.pipelines import load_tiny

SIZE = Size(64, 64)
FILES = ((96, 64), (64, 80), (1200, 1000))  # the last is more than a million pixels


@dataclass(frozen=True)
class Toy:
    """A toy model of FLUX.2 and diffusers' pipeline of it."""

    name: str
    write: Callable[[Path], Path]
    pipeline: Callable[[Path, Any], Any]


TOYS = (
    Toy("flux2", write_flux2_folder, flux2_pipeline),
    Toy("flux2_klein", write_flux2_klein_folder, flux2_klein_pipeline),
)


@pytest.fixture(params=TOYS, ids=lambda toy: toy.name)
def toy(request: pytest.FixtureRequest) -> Toy:
    found: Toy = request.param
    return found


@torch.no_grad()
@pytest.mark.parametrize("guidance", [1.0, 4.0])
@pytest.mark.parametrize(
    "num_references", [0, 2, pytest.param(1, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.full)]
)
def test_a_sample_is_that_of_the_pipeline(toy: Toy, num_references: int, guidance: float, tmp_path: Path) -> None:
    """The references have the sizes of the pipeline, of which some are scaled and cropped."""
    folder = toy.write(tmp_path / "model")
    family = load_tiny(folder, toy.name, variant="edit")
    pipe = toy.pipeline(folder, family)
    files = [tmp_path / f"{number}.png" for number in range(num_references)]
    for number, file in enumerate(files):
        draw_image(*FILES[number], number).save(file)
    start, generator = initial_noise((1, *family.spec.latents.shape(64, 64)), seed=3, device=CPU)
    patches = torch.pixel_unshuffle(start, 2)
    theirs = pipe(
        image=[Image.open(file) for file in files] or None,
        prompt=["a disc"],
        latents=patches,
        num_inference_steps=3,
        guidance_scale=guidance,
        height=64,
        width=64,
        output_type="pt",
    ).images
    fit = ReferenceFit(family.spec.references, follows_image=False)
    inputs = {
        name: family.encode_images(read_reference_image(file, SIZE, fit))
        for name, file in zip(REFERENCES, files, strict=False)
    }
    is_doubled = family.spec.doubles_batch(guidance)
    text = family.encode_guided("", "a disc") if is_doubled else family.encode_prompts(["a disc"])
    text = with_guidance(family, text, guidance)

    def predict(noisy: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        expanded = {n: latents.expand(len(noisy), -1, -1, -1) for n, latents in inputs.items()}
        return family.predict(noisy, timestep.expand(len(noisy)), text, expanded)

    ours = run_denoising_loop(
        guide(predict, guidance) if is_doubled else predict,
        scheduler_for(family, "euler", SIZE),
        start,
        num_steps=3,
        generator=generator,
        on_step=lambda: None,
    )
    torch.testing.assert_close((family.decode(ours) / 2 + 0.5).clamp(0, 1), theirs, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_the_references_are_told_apart_by_their_place(toy: Toy, tmp_path: Path) -> None:
    """Two references in another order give another prediction, and rows of a batch do not see each other."""
    family = load_tiny(toy.write(tmp_path / "model"), toy.name, variant="edit")
    draw = torch.Generator().manual_seed(1)
    noisy, one, two = (torch.randn(2, 32, 8, side, generator=draw) for side in (8, 8, 12))
    timesteps, text = torch.tensor([500.0, 250.0]), family.encode_prompts(["a disc", "a square"])

    def predict(*references: torch.Tensor, rows: slice = slice(None)) -> torch.Tensor:
        inputs = {name: latents[rows] for name, latents in zip(REFERENCES, references, strict=False)}
        chosen = text.select(range(2)[rows])
        prediction: torch.Tensor = family.predict(noisy[rows], timesteps[rows], chosen, inputs)
        return prediction

    both = predict(one, two)
    assert both.shape == noisy.shape
    assert not torch.allclose(both, predict(two, one), atol=1e-3)
    assert not torch.allclose(both, predict(one), atol=1e-3)
    torch.testing.assert_close(both[1:], predict(one, two, rows=slice(1, 2)), rtol=1e-4, atol=1e-5)
