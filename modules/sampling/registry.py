"""The samplers, one line each. Torch-free: the schedulers are diffusers' and are only named here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class SamplerSpec:
    """A sampler: its label, the diffusers scheduler it uses, that scheduler's options, and the prediction types of the
    models it can sample.
    """

    label: str
    scheduler: str
    options: Mapping[str, Any] = field(default_factory=dict)
    predictions: tuple[str, ...] = ("epsilon", "v_prediction")


SAMPLERS: Mapping[str, SamplerSpec] = {
    "ddim": SamplerSpec("DDIM", "DDIMScheduler"),
    "euler": SamplerSpec("Euler", "EulerDiscreteScheduler"),
    "euler_a": SamplerSpec("Euler a", "EulerAncestralDiscreteScheduler"),
    "euler_karras": SamplerSpec("Euler Karras", "EulerDiscreteScheduler", {"use_karras_sigmas": True}),
    "dpmpp": SamplerSpec("DPM++ 2M", "DPMSolverMultistepScheduler"),
    "dpmpp_karras": SamplerSpec("DPM++ 2M Karras", "DPMSolverMultistepScheduler", {"use_karras_sigmas": True}),
    "dpmpp_sde": SamplerSpec("DPM++ 2M SDE", "DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}),
    "dpmpp_sde_karras": SamplerSpec(
        "DPM++ 2M SDE Karras",
        "DPMSolverMultistepScheduler",
        {"algorithm_type": "sde-dpmsolver++", "use_karras_sigmas": True},
    ),
    "unipc": SamplerSpec("UniPC", "UniPCMultistepScheduler"),
    "unipc_karras": SamplerSpec("UniPC Karras", "UniPCMultistepScheduler", {"use_karras_sigmas": True}),
}


def sampler_labels() -> Mapping[str, str]:
    """Return the samplers' labels by name."""
    return {name: spec.label for name, spec in SAMPLERS.items()}
