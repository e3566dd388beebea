"""Several reference images with each image, of unequal numbers and sizes: batches, caches, samples, resuming."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.data.inputs import REFERENCES
from modules.families.flux.model import Flux
from modules.families.flux.spec import FLUX
from tests.builders.configs import laid_over
from tests.builders.flux2 import write_flux2_folder
from tests.builders.flux2_klein import write_flux2_klein_folder
from tests.builders.flux3 import write_flux3_folder
from tests.builders.pipelines import load_tiny, sample_with_ours
from tests.builders.references import referenced_config
from tests.builders.runs import assert_equal_tensors, losses, run
from trainer.events import BackupSaved, CacheProgress, SampleReady, ValidationFinished
from trainer.preflight import check
from trainer.run.prune import unused_by

PROMPT = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2, "guidance": 2.5, "sampler": "euler"}


@pytest.fixture
def config(tiny_flux_kontext: Path, tmp_path: Path) -> Config:
    return referenced_config(tmp_path, tiny_flux_kontext, {"text_tokens": 16})


@pytest.fixture
def kontext(tiny_flux_kontext: Path) -> Flux:
    family: Flux = load_tiny(tiny_flux_kontext, FLUX.name, variant="edit")
    return family


def test_batches_are_of_equal_numbers_and_the_cache_changes_nothing(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With validation, samples of one to three references, backups, resuming, and entries that pruning keeps."""
    shapes = list[dict[str, tuple[int, ...]]]()
    predict = Flux.predict

    def watched(family: Flux, noisy: torch.Tensor, *args: Any) -> torch.Tensor:
        shapes.append({name: tuple(value.shape) for name, value in args[2].items()} if len(args) > 2 else {})
        return predict(family, noisy, *args)

    monkeypatch.setattr(Flux, "predict", watched)
    concept, folder = config.concepts[0].model_dump(), Path(config.concepts[0].path).parent
    places = [str(folder / name / "0.png") for name in ("before", "garment", "style")]
    names = ("reference_image", "reference_image_2", "reference_image_3")
    prompts = [{**PROMPT, **dict(zip(names, places[:count], strict=False))} for count in range(1, 4)]
    sections: dict[str, Any] = {
        "concepts": [concept, {**concept, "kind": "validation"}],
        "data": {"latent_cache": True, "text_cache": True},
        "sampling": {"at_end": True, "prompts": prompts},
        "validation": {"every": {"n": 1, "unit": "epoch"}},
        "backup": {"every": {"n": 1, "unit": "step"}, "keep": 0},
    }
    cached = laid_over(config, sections)
    ran = run(cached)
    assert ran.finished.outcome == "finished"
    first, second, third = REFERENCES
    aligned, own = (2, 16, 8, 8), (2, 16, 4, 10)
    assert {tuple(s.items()) for s in shapes if any(size[0] == 2 for size in s.values())} == {
        ((first, aligned),),
        ((first, aligned), (second, own)),
        ((first, aligned), (second, own), (third, aligned)),
    }
    assert {p.what for p in ran.of(CacheProgress)} >= {
        *("reference images", "second reference images", "third reference images"),
    }
    assert len(ran.of(SampleReady)) == 3
    assert ran.of(ValidationFinished)
    assert not unused_by([cached]).entries
    resumed = run(cached, resume_from=Path(ran.of(BackupSaved)[0].path))
    assert_equal_tensors(resumed.weights, ran.weights)
    fresh = laid_over(cached, {"data": {"latent_cache": False}, "backup": {"every": {"unit": "never"}}})
    assert losses(run(fresh)) == losses(ran)


@pytest.mark.parametrize("size", ["image", "pipeline"])
def test_the_size_of_references_is_that_of_the_setting(
    config: Config, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = list[int]()
    encode = Flux.encode_images

    def watched(family: Flux, images: torch.Tensor, *args: Any) -> torch.Tensor:
        pixels.append(images.shape[-1] * images.shape[-2])
        return encode(family, images[..., :64, :64], *args)  # a million pixels take a while

    monkeypatch.setattr(Flux, "encode_images", watched)
    changed = laid_over(config, {"data": {"reference_size": size, "latent_cache": False}})
    assert run(changed).finished.outcome == "finished"
    assert (max(pixels) == 64 * 64) == (size == "image")


def test_each_reference_changes_a_sample(kontext: Flux, config: Config) -> None:
    folder = Path(config.concepts[0].path).parent
    one = {"reference_image": str(folder / "before" / "0.png")}
    two = {**one, "reference_image_2": str(folder / "garment" / "0.png")}
    swapped = {"reference_image": two["reference_image_2"], "reference_image_2": one["reference_image"]}
    images = [
        sample_with_ours(kontext, SamplePrompt(**PROMPT).model_copy(update=references))  # type: ignore[arg-type]
        for references in ({}, one, two, swapped)
    ]
    assert all((a != b).any() for n, a in enumerate(images) for b in images[:n])


@dataclass(frozen=True)
class Toy:
    """A toy model of another editing family: how it is written, and settings for prompts of a few tokens."""

    write: Callable[[Path], Path]
    settings: dict[str, Any]


TOYS = {
    "flux2": Toy(write_flux2_folder, {"text_tokens": 256}),
    "flux2_klein": Toy(write_flux2_klein_folder, {"text_tokens": 96}),
    "flux3": Toy(write_flux3_folder, {}),
}


@pytest.mark.parametrize(
    "name", ["flux2_klein", *(pytest.param(n, marks=pytest.mark.full) for n in ("flux2", "flux3"))]
)
def test_another_family_trains_samples_and_resumes(name: str, tmp_path: Path) -> None:
    """A LoRA with gradient checkpointing, caches, validation, samples with references and backups."""
    model = TOYS[name].write(tmp_path / "model")
    config = referenced_config(tmp_path, model, TOYS[name].settings)
    concept, folder = config.concepts[0].model_dump(), Path(config.concepts[0].path).parent
    references = {"reference_image": str(folder / "before" / "0.png")}
    references["reference_image_2"] = str(folder / "garment" / "0.png")
    sections: dict[str, Any] = {
        "concepts": [concept, {**concept, "kind": "validation"}],
        "parts": {"transformer": {"checkpointing": "block"}},
        "sampling": {"at_end": True, "prompts": [PROMPT, {**PROMPT, **references}]},
        "validation": {"every": {"n": 1, "unit": "epoch"}},
        "backup": {"every": {"n": 1, "unit": "step"}, "keep": 0},
    }
    config = laid_over(config, sections)
    assert not [p for p in check(config).problems if p.severity == "error" or (p.path == "model.variant" and p.remedy)]
    ran = run(config)
    assert ran.finished.outcome == "finished"
    assert len(ran.of(SampleReady)) == 2
    assert ran.of(ValidationFinished)
    resumed = run(config, resume_from=Path(ran.of(BackupSaved)[0].path))
    assert_equal_tensors(resumed.weights, ran.weights)
    never = {"backup": {"every": {"unit": "never"}}, "sampling": {"at_end": False, "prompts": []}}
    whole = laid_over(config, {**never, "parts": {"transformer": {"checkpointing": "off"}}})
    assert losses(run(whole)) == losses(ran)
    plain = run(laid_over(config, {**never, "model": {"variant": "text_to_image"}}))
    assert losses(plain) != losses(ran)
