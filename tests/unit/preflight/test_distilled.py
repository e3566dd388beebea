"""Distilled models are recognized before a run, and what to do is said; no other model is taken for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.distilled import DistilledSpec
from modules.families.registry import FAMILIES
from modules.system.problem import Problem
from trainer.preflight.denoiser import problems_of_distilled
from trainer.preflight.run_budget import memory_estimate
from trainer.preflight.training_adapter import problems_of_training_adapter, training_adapter_bytes

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
    assert "Or set a training adapter" not in tuned.advice
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


def hollow_lora(path: Path, shapes: dict[str, tuple[int, int]], rank: int = 32) -> Path:
    """Write the header of a LoRA in ai-toolkit's names, with a hole for its bytes."""
    header: dict[str, Any] = {}
    end = 0
    for layer, (out, width) in shapes.items():
        for name, shape in (("lora_A", (rank, width)), ("lora_B", (out, rank))):
            start, end = end, end + 2 * shape[0] * shape[1]
            entry = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
            header[f"diffusion_model.{layer}.{name}.weight"] = entry
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return path


def test_an_adapter_of_the_published_size_is_checked_and_counted(tmp_path: Path) -> None:
    """Before the model is downloaded, from the headers alone: 1024 px, in int8."""
    blocks = [f"layers.{n}" for n in range(30)] + ["noise_refiner.0", "context_refiner.1"]
    shapes = {f"{b}.attention.{name}": (3840, 3840) for b in blocks for name in ("to_q", "to_k", "to_v", "to_out.0")}
    shapes |= {f"{b}.feed_forward.w2": (3840, 10240) for b in blocks}
    file = hollow_lora(tmp_path / "turbo_v2.safetensors", shapes)
    sampled = {"parts": {"transformer": {"dtype": "int8"}}, "sampling": {"prompts": [{"prompt": "a disc"}]}}
    plain = config_of("someone/Z-Image-Turbo", **sampled)
    config = config_of("someone/Z-Image-Turbo", model={"training_adapter": str(file)}, **sampled)
    assert not list(problems_of_training_adapter(config))
    found, without = (memory_estimate(c, {Size(1024, 1024): 4}) for c in (config, plain))
    assert found is not None
    assert without is not None
    values = sum(32 * (out + width) for out, width in shapes.values())
    sampling, training = found.phase("sampling"), found.phase("training")
    assert sampling is not None
    assert dict(sampling.parts)["training adapter"] == 4 * values == training_adapter_bytes(config)
    assert training == without.phase("training")
    one = hollow_lora(tmp_path / "one.safetensors", {**shapes, "blocks.0.attn.wq": (6144, 6144)})
    [unmatched] = problems_of_training_adapter(config_of("someone/Z-Image-Turbo", model={"training_adapter": str(one)}))
    assert (
        "has 1 layer that this model does not have; the first is diffusion_model.blocks.0.attn.wq" in unmatched.message
    )


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("gone.safetensors", "Download it and choose the file, or leave it empty."),
        ("/somewhere/else/gone.safetensors", "Download it and choose the file, or leave it empty."),
        ("C:/Users/gone.safetensors", "Download it and choose the file, or leave it empty."),
        ("modules/loras/gone.safetensors", "Download it and choose the file, or leave it empty."),  # a folder here
        (
            "owner/repository/v2.safetensors",
            "Download v2.safetensors from https://huggingface.co/owner/repository and choose the file, or "
            "leave it empty.",
        ),
    ],
)
def test_a_training_adapter_that_is_missing_is_to_be_downloaded_from_where_it_is(name: str, advice: str) -> None:
    """Every config of ai-toolkit for a turbo model names one in a repository."""
    [problem] = problems_of_training_adapter(config_of("someone/Z-Image-Turbo", model={"training_adapter": name}))
    assert problem.message == f"{name} does not exist."
    assert problem.advice == advice


def test_every_family_with_distilled_models_says_what_to_do() -> None:
    for spec in FAMILIES.values():
        if spec.distilled is not None:
            assert spec.distilled.advice
            assert spec.distilled.steps > 0
            assert all(spec.distilled.is_named(f"someone/model-{word}") for word in spec.distilled.words)
