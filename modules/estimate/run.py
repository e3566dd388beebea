"""The peak of a run's memory on its device: the most that any of its phases takes, part by part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from modules.estimate.passes import Passes, Plans, count
from modules.families.spec import Role
from modules.memory.tape import FLOAT32_BYTES, Gradients, Shape
from modules.optim.registry import optimizer_spec
from modules.optim.slicing import SLICE_WEIGHTS
from modules.optim.spec import OptimizerSettings

Phase = Literal[
    "encoding images", "encoding captions", "training", "validating", "painting samples", "decoding samples"
]
Average = Literal["off", "here", "elsewhere"]

RUNTIME_BYTES = 600_000_000
"""What CUDA itself takes: its context and kernels (300 to 500 MB) and the workspaces of cuBLAS and cuDNN."""

_WORKING_ARRAYS = 3  # of the size of the weight that is moved: Adafactor's squares, its estimate, and their ratio


@dataclass(frozen=True, slots=True)
class Sample:
    """An image to paint; `is_guided` runs the denoiser on two at once."""

    width_px: int
    height_px: int
    is_guided: bool


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a method adds that learns from images it paints: the last steps that learn, at most; whether each runs
    the denoiser on two at once; and the weights of who reward models them.
    """

    backprop_steps: int
    is_guided: bool
    reward_models_bytes: int


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What of a run decides its memory.

    `on_device` names the parts that are on the training device in each phase that the run has; `sizes` are those that
    batches are made of, in pixels (width, height); `average` says whether EMA is kept, and where. `scales_loss` is what
    float16 does; with `is_fused` weights move inside the backward pass. `sampled` is there where steps paint;
    `runtime_bytes` are what the device itself takes.
    """

    plans: Plans
    on_device: Mapping[Phase, frozenset[str]]
    sizes: tuple[tuple[int, int], ...]
    batch_size: int
    accumulates: bool
    optimizer: OptimizerSettings
    keeps_copies: bool
    average: Average
    encodes_in_training: bool
    samples: tuple[Sample, ...] = ()
    scales_loss: bool = False
    is_fused: bool = False
    sampled: Sampled | None = None
    runtime_bytes: int = RUNTIME_BYTES


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """What a phase takes at its worst moment, by what it is for."""

    phase: Phase
    parts: tuple[tuple[str, int], ...]

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(size for _, size in self.parts)

    def bytes_of(self, part: str) -> int:
        """Return what one thing takes; 0 for what is not there."""
        return dict(self.parts).get(part, 0)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What a run takes on its device in each of its phases."""

    phases: tuple[PhaseMemory, ...]
    is_published: bool = False
    """Whether the model's files are not here yet and the published model of its family was counted."""

    @property
    def peak(self) -> PhaseMemory:
        """The phase that takes most."""
        return max(self.phases, key=lambda p: p.total_bytes)

    def phase(self, name: Phase) -> PhaseMemory | None:
        """Return a phase, or None where the run has it not."""
        return next((p for p in self.phases if p.phase == name), None)

    def __str__(self) -> str:
        """Return it as a sentence: "About 11.3 GB while training: 5.1 weights, 4.0 activations, ..."."""
        peak = self.peak
        shown = [(n, s) for n, s in sorted(peak.parts, key=lambda p: -p[1]) if s >= 50_000_000]
        parts = ", ".join(f"{size / 1e9:.1f} {name}" for name, size in shown)
        told = f": {parts}" if parts else ""
        return f"About {in_gb(peak.total_bytes)} while {peak.phase}{told}."


def estimate(passes: Passes, run: RunPlan, *, is_published: bool = False) -> MemoryEstimate:
    """Return the memory of a run. Raises KeyError, TypeError, ValueError or IndexError where a config is none."""
    one = _Run(passes, run)
    phases = [PhaseMemory(phase, tuple(one.parts_in(phase).items())) for phase in run.on_device]
    return MemoryEstimate(tuple(phases), is_published)


def optimizer_bytes(settings: OptimizerSettings, shapes: Sequence[Shape]) -> int:
    """Return what the states of an optimizer take for trained weights of these shapes."""
    spec = optimizer_spec(settings)
    return round(sum(spec.state_bytes(settings, shape) for shape in shapes))


def in_gb(num_bytes: float) -> str:
    """Return bytes as people read them, in GB of a thousand million bytes; small amounts in MB."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{max(num_bytes, 0) / 1e6:.0f} MB"


class _Run:
    """One run, looked at phase by phase."""

    def __init__(self, passes: Passes, run: RunPlan) -> None:
        run = replace(run, plans={name: passes.with_offloaded(name, plan) for name, plan in run.plans.items()})
        self.passes, self.run = passes, run
        self.weights = {name: passes.weights(name, plan) for name, plan in run.plans.items()}
        self.trained = [s for name in run.plans for s in self._trained_of(name)]
        self.num_trained = count(self.trained)
        self.size = max(run.sizes, key=lambda s: s[0] * s[1], default=(0, 0))

    def parts_in(self, phase: Phase) -> dict[str, int]:
        """Return the bytes that a phase takes at its worst moment, by what they are for."""
        run = self.run
        here = run.on_device[phase]
        parts = {"weights": sum(self.weights[n].num_bytes(run.plans[n]) for n in here), "runtime": run.runtime_bytes}
        match phase:
            case "encoding images":
                return parts | {"activations": self._vae(encodes=True, sizes=run.sizes)}
            case "encoding captions":
                return parts | {"activations": self._text(here, batch=1)}
            case "training":
                return parts | self._kept() | self._training(here)
            case "validating":
                peak = self._denoising(run.batch_size, self.size)
                return parts | self._kept() | {"activations": peak, "average's master weight": self._swapped()}
            case "painting samples":
                sizes = tuple((s.width_px, s.height_px, 1 + s.is_guided) for s in run.samples)
                peak = max((self._denoising(n, (w, h)) for w, h, n in sizes), default=0)
                return parts | self._kept() | {"activations": peak, "average's master weight": self._swapped()}
            case "decoding samples":
                sizes_px = tuple((s.width_px, s.height_px) for s in run.samples)
                decoding = self._vae(encodes=False, sizes=sizes_px)
                return parts | self._kept() | {"activations": decoding, "average's master weight": self._swapped()}

    def _trained_of(self, name: str) -> list[Shape]:
        plan = self.run.plans[name]
        return self.weights[name].trained_here(plan) if plan.trains != "nothing" else []

    def _kept(self) -> dict[str, int]:
        """What a run keeps from its first step to its last, whatever the phase."""
        small = sum(count(self._trained_of(n)) for n in self.run.plans if self._trained_item(n) < FLOAT32_BYTES)
        return {
            "optimizer": optimizer_bytes(self.run.optimizer, self.trained),
            "float32 copies": FLOAT32_BYTES * small if self.run.keeps_copies else 0,
            "average": FLOAT32_BYTES * self.num_trained if self.run.average == "here" else 0,
            "reward_models": self.run.sampled.reward_models_bytes if self.run.sampled else 0,
        }

    def _trained_item(self, name: str) -> int:
        plan = self.run.plans[name]
        return plan.adapter.item_bytes if plan.adapter else plan.weight_bytes

    def _training(self, here: frozenset[str]) -> dict[str, int]:
        """Return the worst of a step's moments: the passes, the step itself, images that are encoded on the way."""
        run, (width_px, height_px) = self.run, self.size
        ways: dict[bool, Gradients] = {True: "accumulated", False: "fused" if run.is_fused else "new"}
        lying = self._gradient_bytes() if run.accumulates else 0
        decoding = []
        if run.sampled is not None:
            activations, gradients, kept = self.passes.chain(
                run.plans,
                batch=run.batch_size * (1 + run.sampled.is_guided),
                width_px=width_px,
                height_px=height_px,
                gradients=ways[run.accumulates],
                num_passes=run.sampled.backprop_steps,
            )
            vae = self._vae_name()
            back = self.passes.decoding_to_learn(run.plans[vae], width_px=width_px, height_px=height_px) if vae else 0
            decoding = [{"activations": kept + back, "gradients": lying}]
        else:
            activations, gradients = self.passes.learning(
                run.plans, batch=run.batch_size, width_px=width_px, height_px=height_px, gradients=ways[run.accumulates]
            )
        moments = [
            {"activations": activations, "gradients": gradients},
            {"gradients": self._gradients_at_step()} | self._moving(),
        ]
        if run.is_fused:
            moments = [{"activations": activations, "gradients": self._largest_gradient()} | self._moving()]
        moments += decoding
        if run.encodes_in_training:
            moments.append({"activations": self._vae(encodes=True, sizes=(self.size,)), "gradients": lying})
        moments.append({"activations": self._text(here, batch=1), "gradients": 0})
        return max(moments, key=lambda m: sum(m.values()))

    def _moving(self) -> dict[str, int]:
        """What moving weights takes beside their gradients: of 16-bit weights a slice in float32, and working arrays.

        Optimizers work through the weights one by one; at worst, on a GPU, with one array beside all that are moved.
        """
        small = [s for n in self.run.plans if self._trained_item(n) < FLOAT32_BYTES for s in self._trained_of(n)]
        num_small, largest = count(small), max((math.prod(s) for s in self.trained), default=0)
        moved = largest if self.run.is_fused else max(largest, self.num_trained - num_small)
        slice_weights = num_small if optimizer_spec(self.run.optimizer).steps_at_once else SLICE_WEIGHTS
        in_slice = min(num_small, largest if self.run.is_fused else max(largest, slice_weights))
        num_arrays = 1 if self.run.keeps_copies else 2  # gradient, value
        working = max(moved, in_slice, _WORKING_ARRAYS * largest)
        return {"working of the optimizer": FLOAT32_BYTES * (num_arrays * in_slice + working)}

    def _largest_gradient(self) -> int:
        return max(
            (self._trained_item(n) * math.prod(s) for n in self.run.plans for s in self._trained_of(n)), default=0
        )

    def _gradients_at_step(self) -> int:
        """Gradients as they lie there when a step is made; a scaled loss is undone in float32 copies of them all."""
        if not self.run.scales_loss or not self.run.keeps_copies:
            return self._gradient_bytes()
        return FLOAT32_BYTES * self.num_trained

    def _gradient_bytes(self) -> int:
        return sum(count(self._trained_of(n)) * self._trained_item(n) for n in self.run.plans)

    def _swapped(self) -> int:
        """While the average, or the optimizer's own, stands in for the weights, these are kept beside it."""
        is_swapped = self.run.average != "off" or optimizer_spec(self.run.optimizer).has_evaluation_mode
        return self._gradient_bytes() if is_swapped else 0

    def _denoising(self, batch: int, size: tuple[int, int]) -> int:
        name = self._part("denoiser")
        return self.passes.looking(name, self.run.plans[name], batch=batch, width_px=size[0], height_px=size[1])

    def _text(self, here: frozenset[str], *, batch: int) -> int:
        """The encoders that are there to be asked: one caption after the other."""
        asked = [n for n in here if self.passes.role_of(n) == "text_encoder"]
        return max(
            (self.passes.looking(n, self.run.plans[n], batch=batch, width_px=0, height_px=0) for n in asked), default=0
        )

    def _vae(self, *, encodes: bool, sizes: tuple[tuple[int, int], ...]) -> int:
        vae = self._vae_name()
        largest = max(sizes, key=lambda s: s[0] * s[1], default=None)
        if largest is None or vae is None:  # a model of pixels has nothing to encode or decode
            return 0
        return self.passes.one_way(self.run.plans[vae], encodes=encodes, width_px=largest[0], height_px=largest[1])

    def _vae_name(self) -> str | None:
        return next((n for n in self.run.plans if self.passes.role_of(n) == "vae"), None)

    def _part(self, role: Role) -> str:
        return next(n for n in self.run.plans if self.passes.role_of(n) == role)
