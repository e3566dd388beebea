"""The peak memory of each phase of a run on its device, broken down by use."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from modules.data.tiles import Tiling
from modules.estimate.passes import Passes, Plans, count
from modules.estimate.run_plan import Phase, RunPlan
from modules.families.spec import Role
from modules.memory.arrays import Gradients
from modules.memory.part_plan import FLOAT32_BYTES, Shape
from modules.objectives.perceptual_files import perceptual_bytes
from modules.optim.registry import optimizer_spec
from modules.optim.spec import OptimizerSettings
from modules.optim.updates.slicing import SLICE_WEIGHTS, SUMMED_BYTES
from modules.system.problem import format_size

_WORKING_ARRAYS = 3  # as large as the updated weight: Adafactor's squares, its estimate, and their ratio


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """The memory of a phase at its peak, by use."""

    phase: Phase
    parts: tuple[tuple[str, int], ...]

    @property
    def total_bytes(self) -> int:
        """The sum of all uses."""
        return sum(size for _, size in self.parts)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The memory of a run on its device in each phase."""

    phases: tuple[PhaseMemory, ...]
    is_published: bool = False
    """Whether the model is not downloaded yet, so the published model of its family was counted."""

    @property
    def peak(self) -> PhaseMemory:
        """The phase that needs the most memory."""
        return max(self.phases, key=lambda p: p.total_bytes)

    def phase(self, name: Phase) -> PhaseMemory | None:
        """Return a phase, or None if the run does not have it."""
        return next((p for p in self.phases if p.phase == name), None)

    def __str__(self) -> str:
        """Return the peak as a sentence: "About 11.3 GB while training: 5.1 GB weights, ..."."""
        peak = self.peak
        shown = [(n, s) for n, s in sorted(peak.parts, key=lambda p: -p[1]) if s >= 50_000_000]
        parts = ", ".join(f"{format_size(size)} {name}" for name, size in shown)
        breakdown = f": {parts}" if parts else ""
        return f"About {format_size(peak.total_bytes)} while {peak.phase}{breakdown}."


def estimate(passes: Passes, run: RunPlan, *, is_published: bool = False) -> MemoryEstimate:
    """Return the memory of a run. Raises KeyError, TypeError, ValueError or IndexError for an invalid config."""
    one = _Run(passes, run)
    phases = [PhaseMemory(phase, tuple(one.parts_in(phase).items())) for phase in run.on_device]
    return MemoryEstimate(tuple(phases), is_published)


def plain_bytes(passes: Passes, part: str, plans: Plans) -> int:
    """Return the bytes of a part's own weights, without its adapter."""
    plan = replace(plans[part], trains="nothing", adapter=None, num_kept=0)
    return passes.weights(part, plan).num_bytes(plan)


def optimizer_bytes(settings: OptimizerSettings, shapes: Sequence[Shape]) -> int:
    """Return the bytes of an optimizer's state for trained weights of these shapes."""
    spec = optimizer_spec(settings)
    numbers = Counter(shapes)  # a model has thousands of weights of a dozen shapes
    return round(sum(number * spec.state_bytes(settings, shape) for shape, number in numbers.items()))


class _Run:
    """The memory of one run, phase by phase."""

    def __init__(self, passes: Passes, run: RunPlan) -> None:
        run = replace(run, plans={name: passes.with_offloaded(name, plan) for name, plan in run.plans.items()})
        self.passes, self.run = passes, run
        self.weights = {name: passes.weights(name, plan) for name, plan in run.plans.items()}
        self.trained = [s for name in run.plans for s in self._trained_shapes(name)]
        self.num_trained = count(self.trained)
        self.size = max(run.sizes, key=lambda s: s[0] * s[1], default=(0, 0))

    def parts_in(self, phase: Phase) -> dict[str, int]:
        """Return the bytes of a phase at its peak, by use."""
        run = self.run
        here = run.on_device[phase]
        sharded = frozenset[str]() if phase.startswith("encoding") else run.sharded
        weights = sum(self._weight_bytes(n, phase) for n in here | sharded)
        parts = {"weights": weights, "runtime": run.runtime_bytes, **self._sampling_extras(phase)}
        match phase:
            case "encoding images":
                return parts | {"activations": self._encoding_peak(run.sizes)}
            case "encoding captions":
                return parts | {"activations": self._text_peak(here, batch=1)}
            case "training":
                copies = {"original weights": self._original_bytes(), "reference weights": self._reference_bytes()}
                return (
                    parts
                    | self._lasting_bytes()
                    | self._step_peak(here)
                    | copies
                    | {"sampled latents": self._latents_bytes()}
                )
            case "validating" if run.reconstructs:  # one image after the other
                peak = max(self._vae_peak(encodes=encodes, sizes=(self.size,)) for encodes in (True, False))
                return parts | self._inference_bytes(peak)
            case "validating":
                peak = self._denoising_peak(run.batch_size * run.images_per_pass, self.size)
                return parts | self._inference_bytes(peak)
            case "sampling":
                sizes = tuple((s.width_px, s.height_px, 1 + s.is_guided) for s in run.samples)
                peak = max((self._denoising_peak(n, (w, h)) for w, h, n in sizes), default=0)
                return parts | self._inference_bytes(peak)
            case "decoding samples":
                sizes_px = tuple((s.width_px, s.height_px) for s in run.samples)
                return parts | self._inference_bytes(
                    self._vae_peak(encodes=False, sizes=sizes_px, tiles=run.sample_tiles)
                )

    def _sampling_extras(self, phase: Phase) -> dict[str, int]:
        """Return the bytes that samples need besides the model; a sampling model may stay in every phase."""
        run = self.run
        parts = {"training adapter": run.training_adapter_bytes} if phase == "sampling" else {}
        if run.keeps_other_denoiser:
            parts["sampling model"] = plain_bytes(self.passes, self._part("denoiser"), run.plans)
        return parts

    def _weight_bytes(self, name: str, phase: Phase) -> int:
        """Return the bytes of a part's weights: of a sharded one, its rows and what the phase gathers."""
        plan, run = self.run.plans[name], self.run
        num_bytes = self.weights[name].num_bytes(plan)
        if name not in run.sharded:
            return num_bytes
        if name not in run.on_device[phase]:
            gathered = 0
        elif phase == "training":
            block, rest = self.passes.gathered_bytes(name, plan)
            gathered = min(2 * block + rest, num_bytes)
        else:
            gathered = num_bytes
        return math.ceil(num_bytes / run.num_shards) + gathered

    def _trained_shapes(self, name: str) -> list[Shape]:
        """Return the shapes of a part's trained weights on the device, or of this process's rows of a sharded one."""
        plan, run = self.run.plans[name], self.run
        shapes = self.weights[name].trained_here(plan) if plan.trains != "nothing" else []
        if name not in run.sharded:
            return shapes
        return [(math.ceil(first / run.num_shards), *rest) for first, *rest in shapes]

    def _lasting_bytes(self) -> dict[str, int]:
        """Return the bytes that stay allocated from the first step to the last, in every phase."""
        small = sum(
            count(self._trained_shapes(n)) for n in self.run.plans if self._trained_item_bytes(n) < FLOAT32_BYTES
        )
        return {
            "optimizer": optimizer_bytes(self.run.optimizer, self.trained),
            "master weights": FLOAT32_BYTES * small if self.run.has_master_weights else 0,
            "EMA": FLOAT32_BYTES * self.num_trained if self.run.average == "here" else 0,
            "reward models": self.run.sampled.reward_models_bytes if self.run.sampled else 0,
            "perceptual distance": perceptual_bytes() if self.run.is_perceptual else 0,
        }

    def _trained_item_bytes(self, name: str) -> int:
        plan = self.run.plans[name]
        return plan.adapter.item_bytes if plan.adapter else plan.weight_bytes

    def _step_peak(self, here: frozenset[str]) -> dict[str, int]:
        """Return the largest use of a step: its passes, the optimizer step, or encoding without a cache."""
        run = self.run
        accumulated = self._gradient_bytes() if run.accumulates else 0
        activations, gradients, sampling = self._passes_peak()
        moments = [
            {"activations": activations, "gradients": gradients} | self._gradient_sums(),
            {"gradients": self._gradients_at_step()} | self._workspace(),
        ]
        if run.is_fused:
            moments = [{"activations": activations, "gradients": self._largest_gradient()} | self._workspace()]
        moments += [{"activations": peak, "gradients": accumulated} for peak in sampling]
        if run.encodes_in_training:
            moments.append({"activations": self._encoding_peak((self.size,)), "gradients": accumulated})
        moments.append({"activations": self._text_peak(here, batch=1), "gradients": 0})
        return max(moments, key=lambda m: sum(m.values()))

    def _passes_peak(self) -> tuple[int, int, list[int]]:
        """Return the peak of a step's forward and backward passes, the gradients at that moment, and further peaks.

        The further ones are of sampling and decoding images to train on.
        """
        run, sampled, passes = self.run, self.run.sampled, self.passes
        size = (sampled.size_px if sampled else None) or self.size
        sides = {"width_px": size[0], "height_px": size[1]}
        gradients: Gradients = "accumulated" if run.accumulates else "fused" if run.is_fused else "new"
        batch = run.batch_of_step * run.images_per_pass
        if run.reconstructs and (vae := self._vae_name()):
            pair = passes.reconstruction_peak(
                run.plans[vae],
                batch=batch,
                width_px=size[0],
                height_px=size[1],
                gradients=gradients,
                is_perceptual=run.is_perceptual,
            )
            return *pair, []
        if sampled is None and run.sharded:
            # The gradients of a block are whole until they are summed, in float32, and sharded.
            activations, _ = passes.training_peak(run.plans, batch=batch, **sides, gradients="fused")
            blocks = [passes.gathered_bytes(n, run.plans[n])[0] // run.plans[n].weight_bytes for n in run.sharded]
            return activations + max(blocks) * 2 * FLOAT32_BYTES, self._gradient_bytes(), []
        if sampled is None:
            return *passes.training_peak(run.plans, batch=batch, **sides, gradients=gradients), []
        batch *= 1 + (sampled.is_guided and sampled.trains_guided)
        if sampled.backprop_steps == 0:
            sampling = self._denoising_peak(run.batch_size * (1 + sampled.is_guided), size)
            trained = passes.training_peak(run.plans, batch=batch, **sides, gradients=gradients)
            return *trained, [sampling, self._vae_peak(encodes=False, sizes=(size,))]
        activations, held, kept = passes.consecutive_peak(
            run.plans, batch=batch, **sides, gradients=gradients, num_passes=sampled.backprop_steps
        )
        vae = self._vae_name()
        back = passes.decoding_gradient_peak(run.plans[vae], **sides) if vae else 0
        return activations, held, [kept + back]

    def _workspace(self) -> dict[str, int]:
        """Return the bytes of an optimizer step besides gradients: float32 slices of 16-bit weights, and arrays.

        Optimizers update the weights one by one; at worst, on a GPU, with one array for all updated weights.
        """
        small = [
            s for n in self.run.plans if self._trained_item_bytes(n) < FLOAT32_BYTES for s in self._trained_shapes(n)
        ]
        num_small, largest = count(small), max((math.prod(s) for s in self.trained), default=0)
        moved = largest if self.run.is_fused else max(largest, self.num_trained - num_small)
        slice_weights = num_small if optimizer_spec(self.run.optimizer).steps_at_once else SLICE_WEIGHTS
        in_slice = min(num_small, largest if self.run.is_fused else max(largest, slice_weights))
        num_arrays = 1 if self.run.has_master_weights else 2  # gradient, value
        working = max(moved, in_slice, _WORKING_ARRAYS * largest)
        workspace = {"optimizer workspace": FLOAT32_BYTES * (num_arrays * in_slice + working)}
        return workspace | (
            {"copies in case of a skipped update": self._skip_copies_bytes()} if self._skip_copies_bytes() else {}
        )

    def _skip_copies_bytes(self) -> int:
        """Return the bytes of the copies of a weight and its state, with which a fused update can be skipped."""
        spec, settings = optimizer_spec(self.run.optimizer), self.run.optimizer
        if not self.run.is_fused or spec.skips_on_device(settings):
            return 0
        return max((FLOAT32_BYTES * math.prod(s) + int(spec.state_bytes(settings, s)) for s in self.trained), default=0)

    def _gradient_sums(self) -> dict[str, int]:
        """Return the bytes of the gradients that are being summed between processes; empty for a single process.

        The gradients of sharded weights are counted with their blocks.
        """
        run = self.run
        if run.summed_bytes is None:
            return {}
        sizes = [
            math.prod(shape) * (FLOAT32_BYTES if run.sums_in_float32 else self._trained_item_bytes(name))
            for name in run.plans
            if name not in run.sharded
            for shape in self._trained_shapes(name)
        ]
        at_once = max(run.summed_bytes, SUMMED_BYTES, *sizes, 0)
        return {"gradient sums": min(sum(sizes), at_once)} if sizes else {}

    def _largest_gradient(self) -> int:
        return max(
            (self._trained_item_bytes(n) * math.prod(s) for n in self.run.plans for s in self._trained_shapes(n)),
            default=0,
        )

    def _gradients_at_step(self) -> int:
        """Return the bytes of the gradients at the optimizer step; unscaling a scaled loss needs them in float32."""
        if not self.run.scales_loss or not self.run.has_master_weights:
            return self._gradient_bytes()
        return FLOAT32_BYTES * self.num_trained

    def _gradient_bytes(self) -> int:
        return sum(count(self._trained_shapes(n)) * self._trained_item_bytes(n) for n in self.run.plans)

    def _original_bytes(self) -> int:
        """Return the bytes of the copies of weights before training; offloaded weights have offloaded copies."""
        return self._gradient_bytes() if self.run.has_originals else 0

    def _reference_bytes(self) -> int:
        """Return the bytes of the copies of weights from a later step; offloaded weights have offloaded copies."""
        return self._gradient_bytes() if self.run.sampled and self.run.sampled.copies_weights else 0

    def _latents_bytes(self) -> int:
        return self.run.sampled.kept_latents_bytes if self.run.sampled else 0

    def _inference_bytes(self, activations_bytes: int) -> dict[str, int]:
        """Return the bytes, besides weights, of a phase that runs the model without gradients between steps."""
        swapped = {"weights swapped out for EMA": self._swap_bytes()}
        return self._lasting_bytes() | {"activations": activations_bytes} | swapped

    def _swap_bytes(self) -> int:
        """Return the bytes of the trained weights that are set aside while EMA or evaluation weights replace them."""
        is_swapped = self.run.average != "off" or optimizer_spec(self.run.optimizer).has_evaluation_mode(
            self.run.optimizer
        )
        return self._gradient_bytes() if is_swapped else 0

    def _denoising_peak(self, batch: int, size: tuple[int, int]) -> int:
        name = self._part("denoiser")
        return self.passes.inference_peak(name, self.run.plans[name], batch=batch, width_px=size[0], height_px=size[1])

    def _text_peak(self, here: frozenset[str], *, batch: int) -> int:
        """Return the peak of the text encoders on the device, one caption after the other."""
        encoders = [n for n in here if self.passes.role_of(n) == "text_encoder"]
        return max(
            (self.passes.inference_peak(n, self.run.plans[n], batch=batch, width_px=0, height_px=0) for n in encoders),
            default=0,
        )

    def _encoding_peak(self, sizes: tuple[tuple[int, int], ...]) -> int:
        """Return the peak of encoding images of these sizes, their references, or the clips of the run."""
        vae, tiling = self._vae_name(), self.run.tiles
        clips = (
            self.passes.vae_peak(
                self.run.plans[vae],
                encodes=True,
                width_px=size.width_px,
                height_px=size.height_px,
                num_frames=size.num_frames,
                tiling=tiling,
            )
            for size in self.run.clips
            if vae is not None
        )
        return max([self._vae_peak(encodes=True, sizes=(*sizes, *self.run.references)), *clips])

    def _vae_peak(self, *, encodes: bool, sizes: tuple[tuple[int, int], ...], tiles: Tiling | None = None) -> int:
        vae, tiling = self._vae_name(), tiles or self.run.tiles
        if vae is None:  # a pixel-space model has none
            return 0
        # An image in tiles may need less than a smaller one without tiles.
        tiled = [size for size in sizes if tiling.applies(*size)]
        groups = (tiled, [size for size in sizes if size not in tiled])
        largest = [max(group, key=lambda s: s[0] * s[1]) for group in groups if group]
        plan = self.run.plans[vae]
        halves = (
            self.passes.vae_peak(plan, encodes=encodes, width_px=w, height_px=h, tiling=tiling) for w, h in largest
        )
        return max(halves, default=0)

    def _vae_name(self) -> str | None:
        return next((n for n in self.run.plans if self.passes.role_of(n) == "vae"), None)

    def _part(self, role: Role) -> str:
        return next(n for n in self.run.plans if self.passes.role_of(n) == role)
