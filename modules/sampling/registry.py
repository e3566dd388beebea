"""The samplers, one line each. The schedulers are diffusers' and are only named here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from modules.families.registry import predictions_in_use


@dataclass(frozen=True, slots=True)
class FlowScheduler:
    """The diffusers scheduler that a sampler uses for flow models, and its options.

    `shift_option` is the name of its option for the shift. With `has_grid` it accepts the sigmas of a family's grid;
    others have their own grid.
    """

    scheduler: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shift_option: str = "flow_shift"
    has_grid: bool = False


@dataclass(frozen=True, slots=True)
class SamplerSpec:
    """A sampler: its label, the diffusers scheduler it uses for DDPM models, that scheduler's options, and the
    prediction types of the models it can sample. `flow` is its scheduler for flow models, None if it has none.
    """

    label: str
    scheduler: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    predictions: tuple[str, ...] = ("epsilon", "v_prediction")
    flow: FlowScheduler | None = None

    def supports(self, predictions: Collection[str]) -> bool:
        """Return whether it can sample models of one of these prediction types."""
        is_flow = self.flow is not None and "flow" in predictions
        return is_flow or not set(predictions).isdisjoint(self.predictions)


_FLOW_EULER = FlowScheduler("FlowMatchEulerDiscreteScheduler", {"use_dynamic_shifting": False}, "shift", has_grid=True)
_FLOW_HEUN = FlowScheduler("FlowMatchHeunDiscreteScheduler", {}, "shift")
_MULTISTEP = {
    "use_flow_sigmas": True,
    "prediction_type": "flow_prediction",
    "use_dynamic_shifting": False,
    "time_shift_type": "exponential",
}
_FLOW_DPMPP = FlowScheduler("DPMSolverMultistepScheduler", _MULTISTEP)
_FLOW_UNIPC = FlowScheduler("UniPCMultistepScheduler", _MULTISTEP, has_grid=True)

SAMPLERS: Mapping[str, SamplerSpec] = {
    # On the straight path of a flow the step of DDIM (Song et al. 2021, eq. 12 with eta 0) equals Euler's.
    "ddim": SamplerSpec("DDIM", "DDIMScheduler", flow=_FLOW_EULER),
    "euler": SamplerSpec("Euler", "EulerDiscreteScheduler", flow=_FLOW_EULER),
    "euler_a": SamplerSpec("Euler a", "EulerAncestralDiscreteScheduler"),
    "euler_karras": SamplerSpec("Euler Karras", "EulerDiscreteScheduler", {"use_karras_sigmas": True}),
    "heun": SamplerSpec("Heun", predictions=(), flow=_FLOW_HEUN),
    "dpmpp": SamplerSpec("DPM++ 2M", "DPMSolverMultistepScheduler", flow=_FLOW_DPMPP),
    "dpmpp_karras": SamplerSpec("DPM++ 2M Karras", "DPMSolverMultistepScheduler", {"use_karras_sigmas": True}),
    "dpmpp_sde": SamplerSpec("DPM++ 2M SDE", "DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}),
    "dpmpp_sde_karras": SamplerSpec(
        "DPM++ 2M SDE Karras",
        "DPMSolverMultistepScheduler",
        {"algorithm_type": "sde-dpmsolver++", "use_karras_sigmas": True},
    ),
    "unipc": SamplerSpec("UniPC", "UniPCMultistepScheduler", flow=_FLOW_UNIPC),
    "unipc_karras": SamplerSpec("UniPC Karras", "UniPCMultistepScheduler", {"use_karras_sigmas": True}),
}


def samplers_for(predictions: Collection[str]) -> Mapping[str, SamplerSpec]:
    """Return the samplers of models of one of these prediction types, by name."""
    return {name: spec for name, spec in SAMPLERS.items() if spec.supports(predictions)}


def sampler_labels() -> Mapping[str, str]:
    """Return the names and labels of the samplers that some family's models can be sampled with."""
    return {name: spec.label for name, spec in samplers_for(predictions_in_use()).items()}
