"""The passes of a model's parts and what each takes, remembered: several phases and settings ask for the same."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from modules.families.registry import memory_of
from modules.families.spec import FamilySpec, Role
from modules.memory.offloaded_layers import choose_offloaded
from modules.memory.tape import Array, Gradients, PartPlan, Shape, Tape
from modules.memory.walk import Walk

_SMALL_PX = 64  # the weights of a part do not hang on the size of images

Plans = Mapping[str, PartPlan]


@dataclass(frozen=True, slots=True)
class PartWeights:
    """The shapes of a part's own weights, and of its adapter's, by name."""

    own: Mapping[str, Shape]
    adapter: Mapping[str, Shape]

    def trained(self, plan: PartPlan) -> list[Shape]:
        """Return the shapes of what learns."""
        learning = (shape for name, shape in self.own.items() if plan.is_trained(name.rpartition(".")[0]))
        return [*learning, *self.adapter.values()]

    def trained_here(self, plan: PartPlan) -> list[Shape]:
        """Return the shapes of what learns on the training device."""
        learning = (shape for name, shape in self.own.items() if plan.is_trained_here(name.rpartition(".")[0]))
        return [*learning, *self.adapter.values()]

    def num_bytes(self, plan: PartPlan) -> int:
        """Return what the weights take where the part is; of those that wait, a block's and the next one's.

        Where they learn, a block's gradients are there, too, before they leave.
        """
        adapter_bytes = plan.adapter.item_bytes if plan.adapter else 0
        staying = count(shape for name, shape in self.own.items() if not name.startswith(plan.offloaded_prefixes))
        blocks = self._blocks(plan.offloaded_prefixes)
        guests = sum(sorted(blocks.values())[-2:]) + (max(blocks.values(), default=0) if plan.trains == "full" else 0)
        return (staying + guests) * plan.weight_bytes + count(self.adapter.values()) * adapter_bytes

    def offloaded_prefixes(self, pattern: re.Pattern[str], fraction: float) -> tuple[str, ...]:
        """Return the blocks that wait where this share of them does; their weights' names begin like `pattern`."""
        found = (pattern.match(name) for name in self.own)
        blocks = self._blocks(tuple(dict.fromkeys(match[0] for match in found if match)))
        offloaded = choose_offloaded(list(blocks.values()), fraction)
        return tuple(name for name, is_offloaded in zip(blocks, offloaded, strict=True) if is_offloaded)

    def _blocks(self, names: tuple[str, ...]) -> dict[str, int]:
        """Return how many numbers blocks hold, by what their weights' names begin with."""
        return {name: count(shape for n, shape in self.own.items() if n.startswith(name)) for name in names}


class Passes:
    """Runs the parts of one model, each pass once."""

    def __init__(self, spec: FamilySpec, configs: Mapping[str, Mapping[str, Any]]) -> None:
        """`configs` by part. A config that is none shows itself as KeyError, TypeError, ValueError or IndexError."""
        self._spec = spec
        self._memory = memory_of(spec.name)
        self._configs = configs
        self._known: dict[Hashable, Any] = {}

    def role_of(self, part: str) -> Role:
        """Return what a part does."""
        return next(p.role for p in self._spec.parts if p.name == part)

    def weights(self, part: str, plan: PartPlan) -> PartWeights:
        """Return the shapes of a part's weights and of its adapter's."""

        def find() -> PartWeights:
            walk = Walk(Tape(), replace(plan, checkpointing="off"), records=False)
            self._run(walk, part, batch=1, width_px=_SMALL_PX, height_px=_SMALL_PX)
            return PartWeights(walk.weights, walk.adapter_weights)

        found: PartWeights = self._once(("weights", part, plan), find)
        return found

    def with_offloaded(self, part: str, plan: PartPlan) -> PartPlan:
        """Return a plan that knows which of the part's blocks wait."""
        if not plan.offload_fraction:
            return plan
        return replace(
            plan,
            offloaded_prefixes=self.weights(part, plan).offloaded_prefixes(
                self._memory.blocks[part], plan.offload_fraction
            ),
        )

    def looking(self, part: str, plan: PartPlan, *, batch: int, width_px: int, height_px: int) -> int:
        """Return the most bytes of a pass without gradients, weights left out; of a VAE the larger of its two ways."""

        def run() -> int:
            walk = Walk(Tape(), plan, records=False)
            self._run(walk, part, batch=batch, width_px=width_px, height_px=height_px)
            return walk.tape.meter.peak

        peak: int = self._once(("looking", part, plan, batch, width_px, height_px), run)
        return peak

    def one_way(self, plan: PartPlan, *, encodes: bool, width_px: int, height_px: int) -> int:
        """Return the most bytes of the VAE's way to latents or back, for one image, weights left out."""

        def run() -> int:
            walk = Walk(Tape(), plan, records=False)
            way = self._memory.encode if encodes else self._memory.decode
            assert way is not None, "only a family with a VAE is asked for its ways"
            way(walk, self._configs[self._name_of("vae")], width_px=width_px, height_px=height_px)
            return walk.tape.meter.peak

        peak: int = self._once(("vae", plan, encodes, width_px, height_px), run)
        return peak

    def decoding_to_learn(self, plan: PartPlan, *, width_px: int, height_px: int) -> int:
        """Return the most bytes of decoding one image and taking a gradient back to its latents, weights left out."""

        def run() -> int:
            tape = Tape()
            walk = Walk(tape, plan, records=True)
            config = self._configs[self._name_of("vae")]
            assert self._memory.decode is not None, "only a family with a VAE is asked for its ways"
            self._memory.decode(walk, config, width_px=width_px, height_px=height_px, needs_grad=True)
            return max(tape.meter.peak, sum(tape.backward_peak("new")))

        peak: int = self._once(("decoding to learn", plan, width_px, height_px), run)
        return peak

    def learning(
        self, plans: Plans, *, batch: int, width_px: int, height_px: int, gradients: Gradients
    ) -> tuple[int, int]:
        """Return what the forward and backward pass of a batch take at most: bytes in use, and gradients then.

        Text encoders that learn run before the denoiser.
        """
        return self._learned(plans, batch, width_px, height_px, gradients, 1)[:2]

    def chain(
        self, plans: Plans, *, batch: int, width_px: int, height_px: int, gradients: Gradients, num_passes: int
    ) -> tuple[int, int, int]:
        """Return the same of several passes of the denoiser one after the other, and what they all keep till the end.

        Each keeps as much as the one before it, and the last is the first to go back: two tell of any number.
        """
        one, two = (self._learned(plans, batch, width_px, height_px, gradients, n) for n in (1, 2))
        kept = two[2] - one[2]
        more = (num_passes - 2) * kept if num_passes > 1 else 0
        activations, gradient_bytes, all_kept = two if num_passes > 1 else one
        return activations + more, gradient_bytes, all_kept + more

    def _learned(
        self, plans: Plans, batch: int, width_px: int, height_px: int, gradients: Gradients, num_passes: int
    ) -> tuple[int, int, int]:
        def run() -> tuple[int, int, int]:
            tape, text = Tape(), None
            for part in self._spec.parts:
                plan = plans[part.name]
                if part.role == "text_encoder" and plan.trains != "nothing":
                    walk = Walk(tape, plan, records=True)
                    text = self._run(walk, part.name, batch=batch, width_px=width_px, height_px=height_px)
            name = self._name_of("denoiser")
            text_bytes = tape.trained_bytes
            for _ in range(num_passes):
                tape.trained_bytes = text_bytes  # the weights of all passes are the same
                walk = Walk(tape, plans[name], records=True)
                self._run(walk, name, batch=batch, width_px=width_px, height_px=height_px, text=text)
            forward = (tape.meter.peak, tape.trained_bytes if gradients == "accumulated" else 0)
            tape.end_forward()
            return *max(forward, tape.backward_peak(gradients), key=sum), tape.kept_bytes

        key = ("learning", tuple(plans.items()), batch, width_px, height_px, gradients, num_passes)
        found: tuple[int, int, int] = self._once(key, run)
        return found

    def _run(
        self, walk: Walk, part: str, *, batch: int, width_px: int, height_px: int, text: Array | None = None
    ) -> Array:
        config, memory = self._configs[part], self._memory
        match self.role_of(part):
            case "text_encoder":
                return memory.text(walk, part, config, chunks=batch)
            case "vae":
                assert memory.encode is not None
                assert memory.decode is not None
                memory.encode(walk, config, width_px=width_px, height_px=height_px)
                return memory.decode(walk, config, width_px=width_px, height_px=height_px)
            case "denoiser":
                return memory.denoise(walk, config, batch=batch, width_px=width_px, height_px=height_px, text=text)

    def _name_of(self, role: Role) -> str:
        return next(p.name for p in self._spec.parts if p.role == role)

    def _once(self, key: Hashable, work: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = work()
        return self._known[key]


def count(shapes: Any) -> int:
    """Return how many numbers tensors of these shapes hold."""
    return sum(math.prod(shape) for shape in shapes)
