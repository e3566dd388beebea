"""Images and samples beyond a model's tables of positions are refused before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.dataset import Dataset
from tests.unit.preflight.setups import changed, errors
from trainer.preflight import check
from trainer.preflight.denoiser import longest_side_px, problems_of_image_sides, problems_of_sample_sides

PUBLISHED = {
    ("sd3", "stabilityai/stable-diffusion-3-medium-diffusers"): 3072,
    ("sd3", "stabilityai/stable-diffusion-3.5-large"): 3072,
    ("sd3", "stabilityai/stable-diffusion-3.5-medium"): 6144,
    ("anima", "circlestone-labs/Anima-Base-v1.0-Diffusers"): 2048,
    ("z_image", "Tongyi-MAI/Z-Image"): 8192,
    ("sdxl", "stabilityai/stable-diffusion-xl-base-1.0"): None,
}
LARGE = "stabilityai/stable-diffusion-3.5-large"


def config_of(family: str, base: str, **sections: Any) -> Config:
    return Config.model_validate({"model": {"family": {"name": family}, "base_model": base}, **sections})


def dataset_of(sizes: Sequence[tuple[Size, ...]]) -> Dataset:
    return Dataset((), (), 1, buckets=tuple(sizes))


@pytest.mark.parametrize(("model", "longest_px"), PUBLISHED.items(), ids=str)
def test_each_model_states_its_longest_side(model: tuple[str, str], longest_px: int | None) -> None:
    assert longest_side_px(config_of(*model)) == longest_px


def test_images_of_a_longer_side_are_counted_with_what_to_set() -> None:
    config = config_of("sd3", LARGE)
    fitting, wide, tall = (Size(3072, 3072),), (Size(512, 512), Size(4096, 2048)), (Size(1024, 3136),)
    [problem] = problems_of_image_sides(config, dataset_of([fitting, wide]), dataset_of([tall]))
    assert (problem.path, problem.severity) == ("data.resolution_px", "error")
    assert problem.message == (
        "2 images would be trained at up to 4096 × 2048 px. This Stable Diffusion 3 model has positions for sides up "
        "to 3,072 px."
    )
    assert problem.advice == "Lower the resolution, to about 2,172 px, or the max aspect ratio."
    assert not list(problems_of_image_sides(config, dataset_of([fitting]), dataset_of([])))
    unlimited = config_of("sdxl", "stabilityai/stable-diffusion-xl-base-1.0")
    assert not list(problems_of_image_sides(unlimited, dataset_of([wide]), dataset_of([])))


def test_samples_follow_the_model_that_they_are_drawn_with() -> None:
    prompts = [{"width_px": 3072, "height_px": 4096}, {"width_px": 4096, "enabled": False}, {"width_px": 1024}]
    config = config_of("sd3", LARGE, sampling={"prompts": prompts})
    [problem] = problems_of_sample_sides(config)
    assert (problem.path, problem.severity) == ("sampling.prompts.0.height_px", "error")
    assert problem.message.startswith("Sample 1 is 3072 × 4096 px. This Stable Diffusion 3 model has positions")
    medium = changed(config, sampling__model="stabilityai/stable-diffusion-3.5-medium")
    assert not list(problems_of_sample_sides(medium))
    assert not list(problems_of_sample_sides(changed(config, training__trains="vae")))


def test_the_check_reports_images_and_samples(config: Config) -> None:
    anima = changed(
        config,
        model__family="anima",
        model__base_model="circlestone-labs/Anima-Base-v1.0-Diffusers",
        data__fixed_width_px=64,
        data__fixed_height_px=2112,
        sampling__prompts=[{"width_px": 2112, "height_px": 64}],
    )
    assert {"data.resolution_px", "sampling.prompts.0.width_px"} <= set(errors(check(anima)))
    fitting = changed(anima, data__fixed_height_px=2048, sampling__prompts=[{"width_px": 2048, "height_px": 64}])
    assert not {"data.resolution_px", "sampling.prompts.0.width_px"} & set(errors(check(fitting)))
