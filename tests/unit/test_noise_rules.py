"""Noise and timestep settings: what is refused, what has no effect, and what other programs' files become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import decode
from modules.config.imports.any_file import load_any
from modules.config.previews import timestep_preview
from modules.config.rules.every_setting import settings_not_yet_supported, settings_without_effect
from modules.config.rules.noise import noise_process, noise_without_effect, noising_strengths, timestep_distribution
from modules.config.schema import Config
from modules.config.sections.noise import Noise
from modules.settings.field import records_of


def with_noise(method: object = "denoise", **noise: Any) -> Config:
    return Config.model_validate({"training": {"noise": noise, "method": method, "batch_size": 2}})


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        ({}, ""),
        ({"distribution": "beta", "noising_weight": 2.0, "noising_bias": 3.0}, ""),
        ({"distribution": "beta"}, "weight of 0 is not above 0"),
        ({"distribution": "beta", "noising_weight": 2.0, "noising_bias": -1.0}, "bias of -1 is not above 0"),
        ({"distribution": "logit_normal", "noising_weight": -1.0}, "not above -1"),
        ({"distribution": "heavy_tail", "noising_weight": 2.0}, "outside of -1 to 1.752"),
        ({"distribution": "inverted_parabola", "noising_weight": 900.0, "noising_bias": 2.0}, "0 at every timestep"),
        ({"distribution": "uniform", "noising_weight": -5.0}, ""),
    ],
)
def test_parameters_that_give_no_distribution_are_refused(noise: dict[str, Any], expected: str) -> None:
    problems = list(timestep_distribution(with_noise(**noise)))
    assert bool(problems) == bool(expected)
    for problem in problems:
        assert (problem.severity, problem.path) == ("error", "training.noise.noising_weight")
        assert expected in problem.message
        assert problem.advice
    preview = timestep_preview(with_noise(**noise))
    assert bool(preview.bars) != bool(expected)
    assert expected in preview.caption


@pytest.mark.parametrize(("sampler", "steps", "fits"), [("lcm", 8, True), ("lcm", 60, False), ("ddim", 60, True)])
def test_more_steps_than_a_sampler_takes_are_refused(sampler: str, steps: int, fits: bool) -> None:
    config = Config.model_validate({"sampling": {"prompts": [{"sampler": sampler, "steps": steps}]}})
    assert [p.path for p in noise_process(config)] == ([] if fits else ["sampling.prompts.0.steps"])


def test_strengths_without_a_timestep_between_are_refused() -> None:
    config = with_noise(min_strength=0.6, max_strength=0.6)
    assert [p.severity for p in noising_strengths(config)] == ["error"]
    assert not timestep_preview(config).bars


@pytest.mark.parametrize(
    ("method", "is_used"),
    [
        ("denoise", True),
        ("dpo", True),
        ("grpo", False),
        ("ddpo", False),
        ("alignprop", False),
        ({"name": "alignprop", "probability": 0.5}, True),
        ({"name": "online_dpo", "pairs": "images"}, True),
        ({"name": "online_dpo", "pairs": "steps"}, False),
    ],
)
def test_methods_that_ignore_the_noise_settings_are_named(method: object, is_used: bool) -> None:
    config = with_noise(method, offset_weight=0.1, shift=2.0)
    problems = [p for p in settings_without_effect(config) if "noise" in p.path]
    assert bool(problems) != is_used
    assert ("does not use" in timestep_preview(config).caption) != is_used
    for problem in problems:
        assert problem.severity == "warning"
        assert "Offset noise, Shift" in problem.message
    assert not [p for p in settings_without_effect(with_noise(method)) if "noise" in p.path]


@pytest.mark.parametrize(
    ("noise", "path"),
    [
        ({"generalized_offset": True}, "generalized_offset"),
        ({"offset_random_strength": True, "offset_adaptive_scale": 1.0}, "offset_random_strength"),
        ({"input_perturbation_random_strength": True}, "input_perturbation_random_strength"),
        ({"pyramid_iterations": 1}, "pyramid_iterations"),
        ({"pyramid_iterations": 6, "pyramid_discount": 0.0}, "pyramid_iterations"),
        ({"pyramid_iterations": 2}, ""),
        ({"pyramid_discount": 0.2}, "pyramid_discount"),
        ({"offset_adaptive_scale": -1.0}, "offset_adaptive_scale"),
        ({"offset_adaptive_scale": -1.0, "offset_weight": 0.1}, ""),
        ({"generalized_offset": True, "offset_weight": 0.1}, ""),
        ({"generalized_offset": True, "offset_adaptive_scale": 0.1}, ""),
    ],
)
def test_settings_of_a_noise_that_is_off_are_named(noise: dict[str, Any], path: str) -> None:
    config = with_noise(**noise)
    found = [(p.path, p.severity) for p in (*settings_without_effect(config), *noise_without_effect(config))]
    assert found == ([(f"training.noise.{path}", "info")] if path else [])


def test_strata_of_one_image_are_named() -> None:
    one = Config.model_validate({"training": {"noise": {"stratification": "stratified"}, "batch_size": 1}})
    assert [p.path for p in noise_without_effect(one)] == ["training.noise.stratification"]
    assert not list(noise_without_effect(with_noise(stratification="stratified")))


def test_nothing_of_the_noise_is_unsupported() -> None:
    assert not any(r.setting.not_yet or r.setting.not_yet_choices for r in records_of(Noise))
    every = {
        "timestep_distribution": "BETA",
        "noising_weight": 2.0,
        "noising_bias": 3.0,
        "timestep_shift": 1.5,
        "offset_noise_weight": 0.1,
        "generalized_offset_noise": True,
        "perturbation_noise_weight": 0.2,
        "min_noising_strength": 0.1,
        "max_noising_strength": 0.9,
    }
    config = decode({"__version": 11, **every}).config
    assert not [p for p in settings_not_yet_supported(config) if p.path.startswith("training.noise")]
    assert config.training.noise == Noise(
        distribution="beta",
        noising_weight=2.0,
        noising_bias=3.0,
        shift=1.5,
        offset_weight=0.1,
        generalized_offset=True,
        perturbation_weight=0.2,
        min_strength=0.1,
        max_strength=0.9,
    )


KOHYA: dict[str, Any] = {
    "noise_offset": 0.05,
    "noise_offset_random_strength": True,
    "adaptive_noise_scale": 0.005,
    "multires_noise_iterations": 8,
    "multires_noise_discount": 0.2,
    "ip_noise_gamma": 0.1,
    "ip_noise_gamma_random_strength": True,
    "min_timestep": 100,
    "max_timestep": 900,
}
OFFSET = {"offset_weight": 0.05, "offset_random_strength": True, "offset_adaptive_scale": 0.005}
PYRAMID = {"pyramid_iterations": 8, "pyramid_discount": 0.2}
INPUT = {"input_perturbation": 0.1, "input_perturbation_random_strength": True}
RANGE = {"min_strength": 0.1, "max_strength": 0.9}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {**OFFSET, **PYRAMID, **INPUT, **RANGE}),
        ({"noise_offset_type": "Original"}, {**OFFSET, **INPUT, **RANGE}),
        ({"noise_offset_type": "Multires"}, {**PYRAMID, **INPUT, **RANGE}),
        ({"noise_offset": 0, "ip_noise_gamma": 0, "min_timestep": 0, "max_timestep": 1000}, PYRAMID),
        ({"multires_noise_iterations": 0, "ip_noise_gamma": None, "min_timestep": None, "max_timestep": 0}, OFFSET),
    ],
)
def test_kohyas_noise_means_the_same_here(tmp_path: Path, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    file = tmp_path / "kohya.json"
    file.write_text(json.dumps({"pretrained_model_name_or_path": "x", "network_dim": 8, **KOHYA, **changes}))
    loaded = load_any(file)
    assert loaded.config.training.noise == Noise(**expected)
    assert not loaded.config.unknown.get("kohya")


def test_the_preview_is_at_the_resolution_of_the_config() -> None:
    values: dict[str, Any] = {
        "training": {"noise": {"distribution": "logit_normal"}},
        "data": {"resolution_px": [1024]},
    }
    plain = Config.model_validate(values)
    dynamic = Config.model_validate(
        {**values, "training": {"noise": {"distribution": "logit_normal", "dynamic_shift": True}}}
    )
    doubled = Config.model_validate({**values, "training": {"noise": {"distribution": "logit_normal", "shift": 2.0}}})
    bars = [timestep_preview(c).bars for c in (plain, dynamic, doubled)]
    assert bars[0] != bars[1] == bars[2]
    assert all(sum(b) == pytest.approx(1) for b in bars)
    assert "at 1,024 px" in timestep_preview(dynamic).caption
