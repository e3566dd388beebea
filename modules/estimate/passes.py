"""The memory of the passes through a model's parts, cached: several phases and settings need the same ones."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modules.data.tiles import VAE_TILES, Tiling
from modules.estimate.recordings import PassesOfPart, perceptual_recording
from modules.families.spec import FamilySpec, Role, encoding_of
from modules.memory.arrays import Array, Gradients, Tape
from modules.memory.offloaded_layers import choose_offloaded
from modules.memory.part_plan import FLOAT32_BYTES, PartPlan, Shape
from modules.memory.recording import Call, Kind, PassSize, Program, Recording
from modules.memory.replay import Replay

_IMAGE_BYTES = 3 * 4  # of a pixel in float32
_OPERATIONS_OF_NORM = 8  # of an RMS norm that is written out
Plans = Mapping[str, PartPlan]


@dataclass(frozen=True, slots=True)
class PartWeights:
    """The shapes of a part's weights, and of its adapter's trained ones, by name; and the bytes of quantized ones."""

    shapes: Mapping[str, Shape]
    adapter: Mapping[str, Shape]
    quantized: Mapping[str, int] = field(default_factory=dict)

    def trained_shapes(self, plan: PartPlan) -> list[Shape]:
        """Return the shapes of the trained weights."""
        trained = (shape for name, shape in self.shapes.items() if plan.is_trained(name.rpartition(".")[0]))
        return [*trained, *self.adapter.values()]

    def trained_here(self, plan: PartPlan) -> list[Shape]:
        """Return the shapes of the trained weights on the training device."""
        if plan.trains != "full":  # an adapter is asked about a model's thousand weights again and again
            return list(self.adapter.values())
        trained = (shape for name, shape in self.shapes.items() if plan.is_trained_here(name.rpartition(".")[0]))
        return [*trained, *self.adapter.values()]

    def num_bytes(self, plan: PartPlan) -> int:
        """Return the bytes of the weights on the part's device; of offloaded blocks, two at a time are there.

        Where they are trained, the gradients of one block are there too, before they are offloaded.
        """
        adapter_bytes = plan.adapter.item_bytes if plan.adapter else 0
        resident = sum(self._bytes(n, plan) for n in self.shapes if not n.startswith(plan.offloaded_prefixes))
        blocks = self._blocks(plan.offloaded_prefixes, plan)
        loaded = sum(sorted(blocks.values())[-2:]) + (max(blocks.values(), default=0) if plan.trains == "full" else 0)
        kept_bytes = plan.num_kept * FLOAT32_BYTES
        return resident + loaded + count(self.adapter.values()) * adapter_bytes + kept_bytes

    def offloaded_blocks(self, names: Sequence[str], plan: PartPlan) -> tuple[str, ...]:
        """Return the prefixes of the blocks, by their names, that a plan offloads."""
        blocks = self._blocks(_prefixes(names), plan)
        offloaded = choose_offloaded(list(blocks.values()), plan.offload_fraction)
        return tuple(name for name, is_offloaded in zip(blocks, offloaded, strict=True) if is_offloaded)

    def gathered_bytes(self, names: Sequence[str], plan: PartPlan) -> tuple[int, int]:
        """Return the bytes of the largest of the blocks with these names, and of the weights outside blocks.

        Of a sharded part (FSDP2) these weights are gathered: two blocks at a time, and the rest.
        """
        blocks = self._blocks(_prefixes(names), plan)
        total = sum(self._bytes(n, plan) for n in self.shapes)
        return max(blocks.values(), default=0), total - sum(blocks.values())

    def _blocks(self, names: tuple[str, ...], plan: PartPlan) -> dict[str, int]:
        """Return the bytes of the weights of each block, by the prefix of its weights' names."""
        return {name: sum(self._bytes(n, plan) for n in self.shapes if n.startswith(name)) for name in names}

    def _bytes(self, name: str, plan: PartPlan) -> int:
        """Return the bytes of a weight."""
        packed = self.quantized.get(name)
        return math.prod(self.shapes[name]) * plan.weight_bytes if packed is None else packed


def _prefixes(blocks: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{name}." for name in blocks)


_MOST_KNOWN = 200
"""Results that are kept of a model: several searches for settings that fit, at most a few dozen megabytes."""


class Passes:
    """Replays the passes of one model, each once, for any number of plans."""

    def __init__(
        self,
        spec: FamilySpec,
        recordings: Mapping[str, PassesOfPart],
        *,
        num_references: int = 0,
        seen_tokens: int = 0,
    ) -> None:
        """`recordings` by part. `num_references` are the reference images whose tokens the denoiser also gets, and
        `seen_tokens` those that they have in each caption.
        """
        self._spec = spec
        self._seen_tokens = seen_tokens
        self._num_references = num_references
        self._recordings = recordings
        self._known: dict[Hashable, Any] = {}
        self._changing = threading.Lock()

    def are_of(
        self, spec: FamilySpec, recordings: Mapping[str, PassesOfPart], num_references: int, seen_tokens: int
    ) -> bool:
        """Return whether these are the passes of a family, of the very same recordings and of these references."""
        own = self._recordings
        return (
            (self._spec is spec and (self._num_references, self._seen_tokens) == (num_references, seen_tokens))
            and own.keys() == recordings.keys()
            and all(own[part] is recordings[part] for part in own)
        )

    def role_of(self, part: str) -> Role:
        """Return the role of a part."""
        return next(p.role for p in self._spec.parts if p.name == part)

    def layers(self, part: str) -> Mapping[str, Kind]:
        """Return the linear and convolution layers of a part, by path: those that can get an adapter."""

        def find(recording: Recording, program: Program, path: str) -> Iterator[tuple[str, Kind]]:
            for step in program.steps:
                if isinstance(step, Call):
                    yield from find(recording, recording.programs[step.program], f"{path}{step.path}.")
                elif step.kind in ("linear", "conv"):
                    yield f"{path}{step.weights[0]}".removesuffix(".weight"), step.kind

        def find_all() -> dict[str, Kind]:
            return {p: kind for r in self._recordings[part].values() for p, kind in find(r, r.programs[-1], "")}

        kinds: dict[str, Kind] = self._once(("layers", part), find_all)
        return kinds

    def weights(self, part: str, plan: PartPlan) -> PartWeights:
        """Return the shapes of a part's weights and of its adapter's."""

        def find() -> PartWeights:
            shapes = {
                n: shape for recording in self._recordings[part].values() for n, shape in recording.weights.items()
            }
            adapter, quantized = dict[str, Shape](), dict[str, int]()
            for path, kind in self.layers(part).items():
                weight = shapes[f"{path}.weight"]
                if kind == "linear" and plan.quantized is not None and plan.quantized.takes(path):
                    quantized[f"{path}.weight"] = plan.quantized.stored_bytes(path, weight)
                if (on_layer := plan.adapter_on(path)) is not None:
                    adapter |= on_layer.trained_shapes(path, weight)
                    fixed = on_layer.memory.fixed_shapes(on_layer.settings_of(path, weight), weight)
                    shapes |= {f"{path}.{name}": shape for name, shape in fixed.items()}
            return PartWeights(shapes, adapter, quantized)

        weights: PartWeights = self._once(("weights", part, plan), find)
        return weights

    def kept_of_blocks(self, plans: Plans, *, batch: int, width_px: int, height_px: int) -> dict[tuple[str, str], int]:
        """Return the bytes that each block keeps for the backward pass of a batch, by part and name.

        Those are the blocks of the parts with the checkpointing "auto" that a gradient passes through.
        """
        sizes: dict[tuple[str, str], int] = {}
        has_trained_text = any(p.role == "text_encoder" and plans[p.name].has_gradient for p in self._spec.parts)
        for part in self._spec.parts:
            plan = replace(plans[part.name], checkpointed_blocks=frozenset())
            if plan.checkpointing != "auto" or (part.role == "text_encoder" and not plan.has_gradient):
                continue
            name = "decode" if part.role == "vae" else "forward"
            replay = self._replay(Tape(), plan, part.name, name, self._size(batch, width_px, height_px), records=True)
            is_reached = part.role == "denoiser" and has_trained_text  # also where nothing of it is trained
            replay.run(replay.inputs(need_grad=self._recordings[part.name][name].text if is_reached else ()))
            sizes |= {(part.name, name): size for name, size in replay.kept_of_blocks.items() if size}
        return sizes

    def text_elements(self) -> int:
        """Return the number of elements of an encoded chunk of a caption, with its pooled state if it has one."""
        return self._recordings[self._name_of("denoiser")]["forward"].text_elements(self._size(1, 0, 0))

    def with_offloaded(self, part: str, plan: PartPlan) -> PartPlan:
        """Return a plan with the names of the part's offloaded blocks."""
        if not plan.offload_fraction:
            return plan
        blocks = self.weights(part, plan).offloaded_blocks(self._blocks(part), plan)
        return replace(plan, offloaded_prefixes=blocks)

    def gathered_bytes(self, part: str, plan: PartPlan) -> tuple[int, int]:
        """Return the bytes of a part's largest block, and of its weights outside blocks."""
        return self.weights(part, plan).gathered_bytes(self._blocks(part), plan)

    def inference_peak(self, part: str, plan: PartPlan, *, batch: int, width_px: int, height_px: int) -> int:
        """Return the peak bytes of a pass without gradients, not counting weights; for a VAE, the larger of encoding
        and decoding.
        """

        def run() -> int:
            size = self._size(batch, width_px, height_px)
            return max(self._peak_without_gradient(plan, part, name, size) for name in self._recordings[part])

        peak: int = self._once(("inference", part, plan, batch, width_px, height_px), run)
        return peak

    def vae_peak(
        self,
        plan: PartPlan,
        *,
        encodes: bool,
        width_px: int,
        height_px: int,
        num_frames: int = 1,
        tiling: Tiling = VAE_TILES,
    ) -> int:
        """Return the peak bytes of encoding or decoding one image with the VAE, or encoding a clip, without weights.

        For an image in tiles that is the peak of one tile, with the whole image and the sum of its tiles; for a clip
        that is encoded in pieces the peak of one piece, with the other frames.
        """
        is_tiled, side_px = tiling.applies(width_px, height_px), tiling.side_px
        at_once = self._spec.latents.traced_frames(num_frames)
        whole_bytes = _IMAGE_BYTES * width_px * height_px * max(0, num_frames - at_once)
        whole_bytes += 2 * _IMAGE_BYTES * width_px * height_px * num_frames if is_tiled else 0
        width_px, height_px = (min(side_px, px) if is_tiled else px for px in (width_px, height_px))

        def run() -> int:
            name = encoding_of(at_once) if encodes else "decode"
            return self._peak_without_gradient(plan, self._name_of("vae"), name, self._size(1, width_px, height_px))

        peak: int = self._once(("vae", plan, encodes, width_px, height_px, at_once), run)
        return peak + whole_bytes

    def decoding_gradient_peak(self, plan: PartPlan, *, width_px: int, height_px: int) -> int:
        """Return the peak bytes of decoding one image with a backward pass to its latents, not counting weights."""

        def run() -> int:
            tape, size = Tape(), self._size(1, width_px, height_px)
            replay = self._replay(tape, plan, self._name_of("vae"), "decode", size, records=True)
            replay.run(replay.inputs(need_grad=(0,)))
            tape.end_forward()
            return max(tape.meter.peak, sum(tape.backward_peak("new")))

        peak: int = self._once(("decoding with gradient", plan, width_px, height_px), run)
        return peak

    def reconstruction_peak(
        self,
        plan: PartPlan,
        *,
        batch: int,
        width_px: int,
        height_px: int,
        gradients: Gradients,
        is_perceptual: bool = False,
    ) -> tuple[int, int]:
        """Return the peak of a batch's forward and backward pass through a VAE that is trained, as `training` does.

        Where the encoder is not trained, it encodes without gradient. `is_perceptual`: the loss contains LPIPS.
        """

        def run() -> tuple[int, int]:
            vae, size = self._name_of("vae"), self._size(batch, width_px, height_px)
            is_whole = plan.is_trained("encoder.conv_in")
            tape, encoding = Tape(), Tape()
            encoder_plan = replace(plan, checkpointing="off") if plan.checkpointing == "whole" else plan
            encode = self._replay(tape if is_whole else encoding, encoder_plan, vae, "encode", size, records=is_whole)
            encode.run(encode.inputs())
            decode = self._replay(tape, plan, vae, "decode", size, records=True)
            [decoded] = decode.run(decode.inputs(need_grad=(0,) if is_whole else ()))
            kept: list[Array] = []
            if is_perceptual:
                distance = Replay(tape, PartPlan(), perceptual_recording(), size, records=True)
                [_, images] = distance.inputs()
                kept = distance.run([decoded, images])
            before = tape.trained_bytes if gradients == "accumulated" else 0
            forward = (max(tape.meter.peak, encoding.meter.peak), before)
            del kept
            tape.end_forward()
            return max(forward, tape.backward_peak(gradients), key=sum)

        key = ("vae", plan, batch, width_px, height_px, gradients, is_perceptual)
        counts: tuple[int, int] = self._once(key, run)
        return counts

    def training_peak(
        self, plans: Plans, *, batch: int, width_px: int, height_px: int, gradients: Gradients
    ) -> tuple[int, int]:
        """Return the peak of a batch's forward and backward pass: the bytes in use, and the gradients at that moment.

        Trained text encoders run before the denoiser.
        """
        return self._training_passes(plans, batch, width_px, height_px, gradients, 1)[:2]

    def consecutive_peak(
        self, plans: Plans, *, batch: int, width_px: int, height_px: int, gradients: Gradients, num_passes: int
    ) -> tuple[int, int, int]:
        """Return the same for consecutive passes of the denoiser, and the bytes they keep until the backward pass.

        Each pass keeps as much as the one before it, and the last one is backpropagated first, so any number follows
        from two passes.
        """
        one, two = (self._training_passes(plans, batch, width_px, height_px, gradients, n) for n in (1, 2))
        kept = two[2] - one[2]
        more = (num_passes - 2) * kept if num_passes > 1 else 0
        activations, gradient_bytes, all_kept = two if num_passes > 1 else one
        return activations + more, gradient_bytes, all_kept + more

    def _training_passes(
        self, plans: Plans, batch: int, width_px: int, height_px: int, gradients: Gradients, num_passes: int
    ) -> tuple[int, int, int]:
        def run() -> tuple[int, int, int]:
            tape, size, has_trained_text = Tape(), self._size(batch, width_px, height_px), False
            states = []
            for part in self._spec.parts:
                plan = plans[part.name]
                if part.role == "text_encoder" and plan.has_gradient:
                    replay = self._replay(tape, plan, part.name, "forward", size, records=True)
                    states = replay.run(replay.inputs())
                    has_trained_text = any(s.needs_grad for s in states)
            name = self._name_of("denoiser")
            text_bytes = tape.trained_bytes
            for _ in range(num_passes):
                tape.trained_bytes = text_bytes  # the weights of all passes are the same
                replay = self._replay(tape, plans[name], name, "forward", size, records=True)
                text = self._recordings[name]["forward"].text if has_trained_text else ()
                replay.run(replay.inputs(need_grad=text))
            del states
            forward = (tape.meter.peak, tape.trained_bytes if gradients == "accumulated" else 0)
            tape.end_forward()
            return *max(forward, tape.backward_peak(gradients), key=sum), tape.kept_bytes

        ran = tuple(
            (p.name, plans[p.name])
            for p in self._spec.parts
            if p.role == "denoiser" or (p.role == "text_encoder" and plans[p.name].has_gradient)
        )
        key = ("training", ran, batch, width_px, height_px, gradients, num_passes)
        counts: tuple[int, int, int] = self._once(key, run)
        return counts

    def num_operations(self, part: str, *, fuses_norms: bool) -> int:
        """Return the number of operations of a part's passes over a batch, each of them once.

        `fuses_norms`: an RMS norm of diffusers is one of them, as without autocast on CUDA.
        """
        of_norm = 1 if fuses_norms else _OPERATIONS_OF_NORM
        return sum(_num_operations(r, r.programs[-1], of_norm) for r in self._recordings[part].values())

    def _peak_without_gradient(self, plan: PartPlan, part: str, name: str, size: PassSize) -> int:
        replay = self._replay(Tape(), plan, part, name, size, records=False)
        replay.run(replay.inputs())
        return replay.tape.meter.peak

    def _replay(self, tape: Tape, plan: PartPlan, part: str, name: str, size: PassSize, *, records: bool) -> Replay:
        most = next(p.most_tokens for p in self._spec.parts if p.name == part)
        if most is not None:
            size = replace(size, tokens=min(size.tokens, most))
        if self.role_of(part) == "denoiser":  # to its passes, references are a larger image
            size = replace(size, height_px=size.height_px * (1 + self._num_references))
        return Replay(tape, plan, self._recordings[part][name], size, records=records)

    def _size(self, batch: int, width_px: int, height_px: int) -> PassSize:
        tokens = (self._spec.text.usual_tokens or self._spec.text.chunk_tokens) + 2
        return PassSize(batch, width_px, height_px, tokens + self._seen_tokens)

    def _blocks(self, part: str) -> tuple[str, ...]:
        return next(iter(self._recordings[part].values())).blocks

    def _name_of(self, role: Role) -> str:
        return next(p.name for p in self._spec.parts if p.role == role)

    def _once(self, key: Hashable, work: Callable[[], Any]) -> Any:
        known = self._known.get(key)
        if known is None:
            known = work()
            with self._changing:  # two threads of the window may estimate at once
                while len(self._known) >= _MOST_KNOWN:
                    del self._known[next(iter(self._known))]
                self._known[key] = known
        return known


def _num_operations(recording: Recording, program: Program, of_norm: int) -> int:
    """Return the operations of a program and of its blocks, as often as they are called."""
    return sum(
        _num_operations(recording, recording.programs[step.program], of_norm)
        if isinstance(step, Call)
        else of_norm
        if step.kind == "norm"
        else 1
        for step in program.steps
    )


def count(shapes: Any) -> int:
    """Return the number of elements of tensors of these shapes."""
    return sum(math.prod(shape) for shape in shapes)
