"""Qwen-Image-Edit, 2509 and 2511 against diffusers' pipelines: captions with references, predictions, whole samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from PIL import Image

from modules.config.sections.evaluation import SamplePrompt
from modules.data.buckets import Size
from modules.data.inputs import REFERENCES
from modules.data.references import ReferenceFit, ReferenceSizes
from modules.sampling.denoising_loop import initial_noise
from modules.sampling.prediction import read_reference_image
from modules.system.devices import CPU
from tests.builders.images import draw_image
from tests.builders.pipelines import load_tiny, sample_with_ours
from tests.builders.qwen_image import EMPTY, qwen_edit_pipeline, write_qwen_edit_folder

SIZE = Size(64, 64)
FILES = ((96, 64), (64, 80), (300, 250))
AREAS = {1024 * 1024: 128 * 128, 384 * 384: 96 * 96}  # those of the pipelines would take a minute each


@dataclass(frozen=True)
class Model:
    """One of the editing models, and how many references its sample has."""

    name: str
    num_references: int
    is_plus: bool = True
    zero_cond_t: bool = False

    @property
    def variant(self) -> str:
        return "edit" if self.is_plus else "edit_one"


MODELS = (
    Model("edit", 1, is_plus=False),
    Model("2509", 1),
    Model("2509", 3),
    Model("2511", 2, zero_cond_t=True),
)


@pytest.fixture(params=MODELS, ids=lambda model: f"{model.name}-{model.num_references}")
def model(request: pytest.FixtureRequest) -> Model:
    found: Model = request.param
    return found


@pytest.fixture
def folder(model: Model, tmp_path: Path) -> Path:
    return write_qwen_edit_folder(tmp_path / "model", is_plus=model.is_plus, zero_cond_t=model.zero_cond_t)


def smaller(sizes: ReferenceSizes) -> ReferenceSizes:
    return replace(sizes, area_px=AREAS[sizes.area_px])


@pytest.fixture
def family(model: Model, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model and its pipelines, with smaller images; `test_references.py` has the usual sizes."""
    for module in (pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus):
        usual = module.calculate_dimensions
        monkeypatch.setattr(module, "calculate_dimensions", lambda area, ratio, usual=usual: usual(AREAS[area], ratio))
    family = load_tiny(folder, "qwen_image", variant=model.variant)
    spec = family.spec
    usual = spec.seen_with_captions
    seen = {model.variant: replace(usual, sizes=smaller(usual.sizes))}
    family.spec = replace(spec, references=smaller(spec.references), caption_images=seen)
    return family


@pytest.fixture
def files(model: Model, tmp_path: Path) -> list[Path]:
    files = [tmp_path / f"{number}.png" for number in range(model.num_references)]
    for number, file in enumerate(files):
        draw_image(*FILES[number], number).save(file)
    return files


def given_to(pipe: Any, model: Model, files: list[Path]) -> Any:
    """The references as a pipeline takes them: the first model's only one, or a list."""
    images = [Image.open(file).convert("RGB") for file in files]
    return images if model.is_plus else images[0]


@torch.no_grad()
@pytest.mark.parametrize("guidance", [4.0, pytest.param(1.0, marks=pytest.mark.full)])
def test_a_sample_is_that_of_the_pipeline(
    model: Model, folder: Path, family: Any, files: list[Path], guidance: float
) -> None:
    """With the captions and the negative prompt, both read together with the references, and the norm of guidance."""
    pipe = qwen_edit_pipeline(folder, family)
    start, _ = initial_noise((1, *family.spec.latents.shape(64, 64)), seed=3, device=CPU)
    theirs = pipe(
        image=given_to(pipe, model, files),
        prompt=["a disc"],
        negative_prompt=[EMPTY],
        true_cfg_scale=guidance,
        latents=pipe._pack_latents(start, *start.shape),
        num_inference_steps=3,
        height=64,
        width=64,
        output_type="np",
    ).images
    names = ("reference_image", "reference_image_2", "reference_image_3")
    prompt = SamplePrompt(
        prompt="a disc",
        width_px=64,
        height_px=64,
        steps=3,
        guidance=guidance,
        sampler="euler",
        seed=3,
        **dict(zip(names, map(str, files), strict=False)),
    )
    fit = ReferenceFit(family.spec.references, follows_image=False)
    ours = sample_with_ours(family, prompt, fit=fit)
    torch.testing.assert_close(torch.from_numpy(ours) / 255, torch.from_numpy(theirs[0]), rtol=0, atol=3e-3)


@torch.no_grad()
def test_a_caption_and_a_prediction_are_those_of_the_pipeline(
    model: Model, folder: Path, family: Any, files: list[Path]
) -> None:
    """The whole model reads caption and references, and the transformer gets latents of several sizes."""
    pipe = qwen_edit_pipeline(folder, family)
    seen = ReferenceFit(family.spec.seen_with_captions.sizes, follows_image=False)
    images = [read_reference_image(file, SIZE, seen)[0] for file in files]
    given = [
        pipe.image_processor.resize(i, *image.shape[1:])
        for i, image in zip(
            given_to(pipe, model, files) if model.is_plus else [given_to(pipe, model, files)], images, strict=True
        )
    ]
    text = family.encode_with_images(["a disc"], images)
    states, mask = pipe.encode_prompt(["a disc"], image=given if model.is_plus else given[0])
    assert mask is None
    torch.testing.assert_close(text.states_BLD, states, rtol=0, atol=1e-6)

    draw = torch.Generator().manual_seed(1)
    noisy, *references = (torch.randn(1, 16, 8, 8 + 4 * n, generator=draw) for n in range(model.num_references + 1))
    ours = family.predict(noisy, torch.tensor([400.0]), text, dict(zip(REFERENCES, references, strict=False)))
    packed = [pipe._pack_latents(z, *z.shape) for z in (noisy, *references)]
    theirs = family.denoiser(
        hidden_states=torch.cat(packed, dim=1),
        timestep=torch.tensor([0.4]),
        encoder_hidden_states=states,
        img_shapes=[[(1, z.shape[2] // 2, z.shape[3] // 2) for z in (noisy, *references)]],
        return_dict=False,
    )[0][:, :16]
    theirs = pipe._unpack_latents(theirs, 64, 64, pipe.vae_scale_factor).squeeze(2)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_references_and_their_order_change_a_prediction(tmp_path: Path) -> None:
    """In 2511 also the time 0 of their tokens; rows of a batch do not see each other."""
    families = [
        load_tiny(write_qwen_edit_folder(tmp_path / str(zero), zero_cond_t=zero), "qwen_image", variant="edit")
        for zero in (False, True)
    ]
    draw = torch.Generator().manual_seed(1)
    noisy, one, two = (torch.randn(2, 16, 8, side, generator=draw) for side in (8, 8, 12))
    predictions = []
    for family in families:
        text = family.encode_prompts(["a disc", "a much longer caption of a square"])

        def predict(
            *references: torch.Tensor, rows: slice = slice(None), family: Any = family, text: Any = text
        ) -> Any:
            inputs = {name: latents[rows] for name, latents in zip(REFERENCES, references, strict=False)}
            times = torch.tensor([500.0, 250.0])[rows]
            return family.predict(noisy[rows], times, text.select(range(2)[rows]), inputs)

        both = predict(one, two)
        assert not torch.allclose(both, predict(two, one), atol=1e-3)
        assert not torch.allclose(both, predict(one), atol=1e-3)
        torch.testing.assert_close(both[1:], predict(one, two, rows=slice(1, 2)), rtol=1e-4, atol=1e-5)
        predictions.append(both)
    assert not torch.allclose(*predictions, atol=1e-3)
