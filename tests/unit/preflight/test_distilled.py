"""Distilled models are recognized before a run, and what to do is said; no other model is taken for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.families.spec import DistilledSpec
from modules.system.problem import Problem
from trainer.preflight.distilled import problems_of_distilled

FLOW = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}
DYNAMIC = {**FLOW, "use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15}


def config_of(base: str, *, trains: str = "adapter", **sections: Any) -> Config:
    model = {"family": {"name": "z_image"}, "base_model": base, **sections.pop("model", {})}
    return Config.model_validate({"model": model, "training": {"trains": trains}, **sections})


def problems(base: str, **sections: Any) -> list[Problem]:
    return list(problems_of_distilled(config_of(base, **sections)))


@pytest.mark.parametrize(
    ("scheduler", "what"),
    [
        (FLOW, ""),
        (DYNAMIC, ""),
        ({**FLOW, "stochastic_sampling": True}, "stochastic_sampling in its scheduler config"),
        ({"_class_name": "LCMScheduler"}, "LCMScheduler in its scheduler config"),
        ({"_class_name": "TCDScheduler"}, "TCDScheduler in its scheduler config"),
        ({"_class_name": "FlowMatchLCMScheduler"}, "FlowMatchLCMScheduler in its scheduler config"),
        ({**DYNAMIC, "base_shift": 1.0986, "max_shift": 1.0986}, "a fixed dynamic shift in its scheduler config"),
    ],
)
def test_a_scheduler_of_few_steps_shows_it(tmp_path: Path, scheduler: dict[str, Any], what: str) -> None:
    (tmp_path / "model" / "scheduler").mkdir(parents=True)
    (tmp_path / "model" / "scheduler" / "scheduler_config.json").write_text(json.dumps(scheduler))
    found = problems(str(tmp_path / "model"))
    assert [p.severity for p in found] == (["warning"] if what else [])
    assert not what or found[0].message.endswith(f"seems to be a distilled model, by {what}.")


def test_its_name_and_its_config_show_it() -> None:
    spec = DistilledSpec(("turbo",), "Use the base.", config_key="time_cond_proj_dim", undone_words=("de-turbo",))
    assert spec.evidence("someone/Z-Image-Turbo", {}, {}) == "its name"
    assert spec.evidence("someone/turbocharger", {}, {}) == ""
    assert spec.evidence("x", {"time_cond_proj_dim": 256}, {}) == "time_cond_proj_dim in its config"
    assert spec.evidence("x", {"time_cond_proj_dim": None}, FLOW) == ""
    assert spec.evidence("De-Turbo", {}, {"_class_name": "LCMScheduler"}) == ""


def test_what_to_do_is_said_with_and_without_a_training_adapter() -> None:
    [direct] = problems("someone/Z-Image-Turbo")
    assert direct.path == "model.base_model"
    assert direct.advice.endswith("Or set a training adapter for this model.")
    [tuned] = problems("someone/Z-Image-Turbo", trains="full")
    assert "training adapter" not in tuned.advice
    assert not problems("someone/Z-Image-Turbo", model={"training_adapter": "a.safetensors"})
    [idle] = problems("someone/Z-Image", model={"training_adapter": "a.safetensors"})
    assert (idle.path, idle.severity) == ("model.training_adapter", "warning")
    assert not problems("someone/Z-Image-Turbo", trains="vae")


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ({"steps": 8, "guidance": 1.0}, ""),
        ({"steps": 8, "guidance": 4.0}, "guidance"),
        ({"steps": 40, "guidance": 1.0}, "steps"),
    ],
)
def test_samples_of_a_distilled_model_are_to_be_few_steps(prompt: dict[str, Any], field: str) -> None:
    """Of the sampling model, too: its steps and guidance are the sample's own."""
    sampling = {"model": "someone/Z-Image-Turbo", "prompts": [prompt]}
    found = problems("someone/Z-Image", sampling=sampling)
    assert [p.path for p in found] == ([f"sampling.prompts.0.{field}"] if field else [])
    assert not field or found[0].advice == "Set the steps to 8 and the guidance to 1."
    assert not problems("someone/Z-Image", sampling={"prompts": [prompt]})


def test_every_family_with_distilled_models_says_what_to_do() -> None:
    for spec in FAMILIES.values():
        if spec.distilled is not None:
            assert spec.distilled.advice
            assert spec.distilled.steps > 0
            assert all(spec.distilled.is_named(f"someone/model-{word}") for word in spec.distilled.words)
