"""The samplers, one line each. The schedulers are diffusers' and are only named here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class FlowScheduler:
    """The diffusers scheduler that a sampler uses for flow models, and its options.

    `shift_option` is the name of its option for the shift. With `has_grid` it accepts the sigmas of a family's grid;
    others have their own grid. `has_terminal`: it stretches its grid to the `shift_terminal` of a model's scheduler
    config; the grid of others is stretched here.
    """

    scheduler: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shift_option: str = "flow_shift"
    has_grid: bool = False
    has_terminal: bool = True


@dataclass(frozen=True, slots=True)
class SamplerSpec:
    """A sampler: its label and a sentence about it, the diffusers scheduler it uses for DDPM models, that scheduler's
    options, and the prediction types of the models it can sample. `flow` is its scheduler for flow models, None if it
    has none.

    `adds_noise`: it adds new noise in its steps. `is_for_few_steps`: it is for models that were distilled to sample in
    few steps; `most_steps` is how many it takes with a DDPM model, None for any number.
    """

    label: str
    help: str
    scheduler: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    predictions: tuple[str, ...] = ("epsilon", "v_prediction")
    flow: FlowScheduler | None = None
    adds_noise: bool = False
    is_for_few_steps: bool = False
    most_steps: int | None = None

    def supports(self, predictions: Collection[str]) -> bool:
        """Return whether it can sample models of one of these prediction types."""
        is_flow = self.flow is not None and "flow" in predictions
        return is_flow or not set(predictions).isdisjoint(self.predictions)


_OWN_SHIFT = {"use_dynamic_shifting": False}  # it is computed here, from the size of the image
# With `stochastic_sampling` in the model's scheduler config, Euler adds new noise in each step, as LCM does.
_FLOW_EULER = FlowScheduler("FlowMatchEulerDiscreteScheduler", _OWN_SHIFT, "shift", has_grid=True)
_FLOW_DDIM = replace(_FLOW_EULER, options={**_OWN_SHIFT, "stochastic_sampling": False})
_FLOW_HEUN = FlowScheduler("FlowMatchHeunDiscreteScheduler", {}, "shift", has_terminal=False)
_FLOW_LCM = FlowScheduler("FlowMatchLCMScheduler", _OWN_SHIFT, "shift", has_grid=True)
_MULTISTEP = {
    "use_flow_sigmas": True,
    # A model's own choice is for Euler: here any of them would replace the noise levels of a flow by those of DDPM.
    **dict.fromkeys(("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_lu_lambdas"), False),
    "prediction_type": "flow_prediction",
    "use_dynamic_shifting": False,
    "time_shift_type": "exponential",
}
_FLOW_DPMPP = FlowScheduler("DPMSolverMultistepScheduler", _MULTISTEP, has_terminal=False)
_DISTILLED_STEPS = 50  # `original_inference_steps` of diffusers' schedulers, among which theirs are
_FLOW_UNIPC = FlowScheduler("UniPCMultistepScheduler", _MULTISTEP, has_grid=True)

SAMPLERS: Mapping[str, SamplerSpec] = {
    # On the straight path of a flow the step of DDIM (Song et al. 2021, eq. 12 with eta 0) equals Euler's.
    # It would clip latents like pixels where a model's config, written for another scheduler, does not state otherwise.
    "ddim": SamplerSpec(
        "DDIM",
        "The same image for the same seed; 30 to 50 steps.",
        "DDIMScheduler",
        {"clip_sample": False},
        flow=_FLOW_DDIM,
    ),
    "euler": SamplerSpec(
        "Euler",
        "Simple and fast, the usual choice for flow models; 20 to 30 steps.",
        "EulerDiscreteScheduler",
        flow=_FLOW_EULER,
    ),
    "euler_a": SamplerSpec(
        "Euler a",
        "Adds new noise in each step: more varied, and another image for each number of steps.",
        "EulerAncestralDiscreteScheduler",
        adds_noise=True,
    ),
    # Its first step is at the last timestep, as models distilled for few steps were trained (SDXL Turbo and Lightning).
    "euler_trailing": SamplerSpec(
        "Euler trailing",
        "Begins at full noise, for models that were distilled to few steps (SDXL Turbo, Lightning).",
        "EulerDiscreteScheduler",
        {"timestep_spacing": "trailing"},
        is_for_few_steps=True,
    ),
    "euler_karras": SamplerSpec(
        "Euler Karras",
        "Euler with more of its steps near the finished image.",
        "EulerDiscreteScheduler",
        {"use_karras_sigmas": True},
    ),
    "heun": SamplerSpec(
        "Heun", "Two passes for each step: more exact, and half as fast.", predictions=(), flow=_FLOW_HEUN
    ),
    "dpmpp": SamplerSpec(
        "DPM++ 2M",
        "Uses the step before, too: good images in 20 to 25 steps.",
        "DPMSolverMultistepScheduler",
        flow=_FLOW_DPMPP,
    ),
    "dpmpp_karras": SamplerSpec(
        "DPM++ 2M Karras",
        "DPM++ 2M with more of its steps near the finished image: a usual choice for Stable Diffusion.",
        "DPMSolverMultistepScheduler",
        {"use_karras_sigmas": True},
    ),
    "dpmpp_sde": SamplerSpec(
        "DPM++ 2M SDE",
        "DPM++ 2M that adds new noise in each step.",
        "DPMSolverMultistepScheduler",
        {"algorithm_type": "sde-dpmsolver++"},
        adds_noise=True,
    ),
    "dpmpp_sde_karras": SamplerSpec(
        "DPM++ 2M SDE Karras",
        "DPM++ 2M SDE with more of its steps near the finished image.",
        "DPMSolverMultistepScheduler",
        {"algorithm_type": "sde-dpmsolver++", "use_karras_sigmas": True},
        adds_noise=True,
    ),
    "unipc": SamplerSpec(
        "UniPC",
        "Corrects each step by the next prediction: good images in 10 to 20 steps.",
        "UniPCMultistepScheduler",
        flow=_FLOW_UNIPC,
    ),
    "unipc_karras": SamplerSpec(
        "UniPC Karras",
        "UniPC with more of its steps near the finished image.",
        "UniPCMultistepScheduler",
        {"use_karras_sigmas": True},
    ),
    # Each step predicts the image and adds new noise (Luo et al. 2023, algorithm 3; Zheng et al. 2024, algorithm 4).
    "lcm": SamplerSpec(
        "LCM",
        "For models that were distilled to 4 to 8 steps: predicts the image and adds new noise.",
        "LCMScheduler",
        flow=_FLOW_LCM,
        adds_noise=True,
        is_for_few_steps=True,
        most_steps=_DISTILLED_STEPS,
    ),
    "tcd": SamplerSpec(
        "TCD",
        "For models that were distilled with it: as LCM, with less new noise.",
        "TCDScheduler",
        adds_noise=True,
        is_for_few_steps=True,
        most_steps=_DISTILLED_STEPS,
    ),
}


def samplers_for(predictions: Collection[str]) -> Mapping[str, SamplerSpec]:
    """Return the samplers of models of one of these prediction types, by name."""
    return {name: spec for name, spec in SAMPLERS.items() if spec.supports(predictions)}


def sampler_labels() -> Mapping[str, str]:
    """Return the labels of the samplers by name."""
    return {name: spec.label for name, spec in SAMPLERS.items()}


def sampler_help() -> Mapping[str, str]:
    """Return a sentence for each sampler, by its name."""
    return {name: spec.help for name, spec in SAMPLERS.items()}


def help_on_all() -> str:
    """Return the help on the setting, with the samplers for models that were distilled to sample in few steps."""
    few = ", ".join(spec.label for spec in SAMPLERS.values() if spec.is_for_few_steps)
    return f"The sampler that removes the noise. For models distilled for few steps: {few}."
