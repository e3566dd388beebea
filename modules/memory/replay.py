"""The memory of a recorded pass under a plan: the bytes that torch would hold at each moment, in `arrays`.

Autocast is CUDA's: matrix products and convolutions in 16 bits, norms in float32, others in the dtype of their inputs
(PyTorch's "Autocast Op Reference"). The cast of a trained weight is cached once per pass; a frozen weight is cast at
each use.

Adapters and quantized layers are not recorded but computed here by rules, of 3 to 18 lines for an adapter
(`AdapterMemory.walk`). A recording would be valid for a single setting: the sizes depend on the rank, which may differ
by layer, and on LoKr's and OFT's factors of a layer's width, which are not polynomials of it. Each setting that "fit to
my card" and the form try would need another trace of seconds; a rule takes no time.
`tests/training/test_memory_estimate.py` compares the rules with what torch holds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

from modules.memory.arrays import Array, Meter, Storage, Tape
from modules.memory.equal_blocks import BlockRun, layers_of, repeat_run, run_of, without_storage
from modules.memory.part_plan import FLOAT32_BYTES, AdapterPlan, PartPlan, Shape
from modules.memory.recording import Call, Operation, PassSize, Program, Recording, Result
from modules.quantization.registry import QuantizedFormat
from modules.settings.shared_types import MIN_KEPT_LENGTH

_WITH_WEIGHT = frozenset({"linear", "conv"})
_HALF = _WITH_WEIGHT | {"attention", "half"}


class Replay:
    """Runs a recorded pass on a tape.

    A model has dozens of equal blocks, so what a checkpointed block does is computed once for all of them.
    """

    def __init__(self, tape: Tape, plan: PartPlan, recording: Recording, size: PassSize, *, records: bool) -> None:
        """`records`: gradients are needed, as in training; otherwise it is a pass under no_grad."""
        self.tape = tape
        self.plan = plan
        self.weights = recording.weights
        self.kept_of_blocks: dict[str, int] = {}  # what each block keeps for the backward pass, by its name
        self._programs = recording.programs
        self._inputs = recording.inputs
        monomials = size.monomials()
        self._counts = [count.at(monomials) for count in recording.counts]
        self._records = records
        self._is_inside = False
        self._selected: list[Array] | None = None  # the results of the current block that selective checkpointing keeps
        self._is_again = False  # whether that block is being computed again, with the kept results
        self._layers: dict[int, Sequence[str] | None] = {}
        self._runs: dict[Hashable, BlockRun] = {}  # of blocks without gradients
        self._recomputations: dict[Hashable, tuple[Tape, int]] = {}

    def inputs(self, *, need_grad: Sequence[int] = ()) -> list[Array]:
        """Return new inputs of the pass, of which those with an index in `need_grad` need a gradient."""
        made = [self._result(result, 0) for result in self._inputs]
        return [array._replace(needs_grad=i in need_grad and array.is_float) for i, array in enumerate(made)]

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run the pass and return its results."""
        root = self._programs[-1]
        if self.plan.checkpointing == "whole":
            return self._replay_checkpointed(root, "", inputs)
        return self._run(root, "", inputs)

    # -- programs

    def _run(self, program: Program, prefix: str, inputs: Sequence[Array]) -> list[Array]:
        values = dict(enumerate(inputs))
        number = program.num_inputs
        for step in program.steps:
            operands = [values[i] for i in step.operands]
            if isinstance(step, Call):
                results = self._block(self._programs[step.program], f"{prefix}{step.path}", operands)
            else:
                results = self._operate(step, prefix, operands)
                if step.changes >= 0:
                    values[step.operands[step.changes]] = results.pop(0)
            for result in results:
                values[number] = result
                number += 1
            del operands
            results.clear()
            for value in step.frees:
                values.pop(value, None)
        return [values[i] for i in program.results]

    def _block(self, program: Program, path: str, inputs: Sequence[Array]) -> list[Array]:
        """Run a block, checkpointed if the plan requires it."""
        modes = ("block", "selective", "transformer") if program.is_transformer else ("block", "selective")
        if self.plan.checkpointing in modes or path in self.plan.checkpointed_blocks:
            return self._replay_checkpointed(program, f"{path}.", inputs)
        if not self._records:
            return self._run_without_gradient(program, f"{path}.", inputs)
        before = self.tape.kept_bytes
        results = self._run(program, f"{path}.", inputs)
        self.kept_of_blocks[path] = self.tape.kept_bytes - before
        return results

    def _replay_checkpointed(self, program: Program, prefix: str, inputs: Sequence[Array]) -> list[Array]:
        """Save only the inputs, and record the memory for recomputing the block in the backward pass."""
        if not self._records:
            return self._run_without_gradient(program, prefix, inputs)
        self._keep(*inputs)
        self._records = False
        self._selected = [] if self.plan.checkpointing == "selective" else None
        results = self._run_without_gradient(program, prefix, inputs)
        self._records = True
        self.tape.take_over(*self._recompute(program, prefix, inputs))
        self._selected = None
        return [result._replace(needs_grad=result.is_float) for result in results]

    def _recompute(self, program: Program, prefix: str, inputs: Sequence[Array]) -> tuple[Tape, int]:
        """Return the tape of a block that the backward pass computes again, and the bytes of its results' gradients.

        It is a tape of its own, besides everything saved so far.
        """
        key = self._likeness(program, prefix, inputs)
        if key is not None and key in self._recomputations:
            return self._recomputations[key]
        outer, was_inside = self.tape, self._is_inside
        self.tape, self._is_inside, self._is_again = Tape(), True, True
        again = self._run(program, prefix, inputs)
        gradient_bytes = sum(a.num_bytes for a in again if a.is_float)
        inner = Tape(Meter(peak=self.tape.meter.peak), moments=self.tape.moments, trained_bytes=self.tape.trained_bytes)
        self.tape, self._is_inside, self._is_again = outer, was_inside, False
        if key is not None:
            self._recomputations[key] = inner, gradient_bytes
        return inner, gradient_bytes

    def _run_without_gradient(self, program: Program, prefix: str, inputs: Sequence[Array]) -> list[Array]:
        """Run a block under no_grad, or do what an equal block has done."""
        tape, meter = self.tape, self.tape.meter
        key = self._likeness(program, prefix, inputs)
        if key is None:
            return self._run(program, prefix, inputs)
        known = self._runs.get(key)
        if known is None and not any(name.startswith(prefix) for name in tape.casts):
            before, former_peak, former_casts = meter.live, meter.peak, len(tape.casts)
            meter.peak = before
            results = self._run(program, prefix, inputs)
            casts = list(tape.casts.items())[former_casts:]
            self._runs[key] = run_of(meter.peak - before, prefix, inputs, results, casts)
            meter.peak = max(meter.peak, former_peak)
            return results
        if known is None or any(f"{prefix}{name}" in tape.casts for name, _ in known.casts):
            return self._run(program, prefix, inputs)
        meter.peak = max(meter.peak, meter.live + known.peak)
        for name, numel in known.casts:
            tape.casts[f"{prefix}{name}"] = self.new(numel, self.plan.compute_bytes)
        return repeat_run(known, inputs, meter)

    def _likeness(self, program: Program, prefix: str, inputs: Sequence[Array]) -> Hashable:
        """Return a key that blocks share if they do the same, or None for a block that has to run each time.

        The latter has blocks inside, results that selective checkpointing keeps, or an adapter whose settings differ
        by layer.
        """
        plan = self.plan
        if self._selected is not None or (plan.adapter is not None and plan.adapter.settings_at is not None):
            return None
        if id(program) not in self._layers:
            self._layers[id(program)] = layers_of(program)
        layers = self._layers[id(program)]
        if layers is None:
            return None
        storages = [x.storage for x in inputs]
        taken = tuple((storages.index(x.storage), *without_storage(x)) for x in inputs)
        paths = [f"{prefix}{name}" for name in layers]
        treated = tuple(
            (plan.format_of(p) is None, plan.adapter_on(p) is None, plan.is_trained(p), plan.is_trained_here(p))
            for p in paths
        )
        return id(program), taken, treated

    # -- operations

    def _operate(self, step: Operation, prefix: str, operands: list[Array]) -> list[Array]:
        """Return the results of an operation, after the operand that it changes in place."""
        names = [f"{prefix}{name}" for name in step.weights]
        path = names[0].removesuffix(".weight") if step.kind in ("linear", "conv") else ""
        if path:
            operands = [operands[0]._replace(channels=self.weights[names[0]][1]), *operands[1:]]
        if step.kind == "linear" and (form := self.plan.format_of(path)) is not None:
            num_out = self._counts[step.results[0].count]
            results = [self._multiply_quantized(path, operands[0], num_out, form)]
        elif step.kind == "norm":
            results = [self._replay_norm(step, names[0], operands[0])]
        else:
            results = self._replay_operation(step, names, operands)
        if not path:
            return results
        out = results[0]._replace(channels=self.weights[names[0]][0])
        return [self._with_adapter(path, operands[0], out, self.weights[names[0]])]

    def _replay_operation(self, step: Operation, names: Sequence[str], operands: Sequence[Array]) -> list[Array]:
        is_trained = [self.plan.is_trained(name.rpartition(".")[0]) for name in names]
        parts = step.parts or (-1,) * len(operands)
        taken = [self._cast(step.kind, x, part) for x, part in zip(operands, parts, strict=True)]
        target = self._target_bytes(step.kind, taken, has_weights=bool(names))
        is_cast = step.kind in ("weights", "compute", "float32") and bool(taken) and taken[0].is_float
        if is_cast and taken[0].item_bytes == target:  # a cast to the same dtype returns the tensor itself
            return [taken[0]]
        weights = [self._cast_weight(step.kind, n, trained=t) for n, t in zip(names, is_trained, strict=True)]
        needs = [x.needs_grad for x in operands] + [
            t or (step.kind == "embedding" and self.plan.trains_embeddings) for t in is_trained
        ]
        needs_grad = self._records and any(needs)
        length = MIN_KEPT_LENGTH if step.kind == "attention" else step.length
        results = [self._result(r, target, length=length, needs_grad=needs_grad) for r in step.results]
        self._count_trained(names)
        if step.changes >= 0:
            results.insert(0, operands[step.changes]._replace(needs_grad=needs_grad))
        if needs_grad:
            self._save(step, [*taken, *weights, *results[-len(step.results) or len(results) :]], needs, target)
            self._mark(step, operands, results, names, is_trained)
        return results

    def _replay_norm(self, step: Operation, name: str, x: Array) -> Array:
        """Return the result of an RMS norm of diffusers, which it casts to the dtype of its weights.

        If it is not fused it saves a copy in float32, and needs squares and products in float32 meanwhile.
        """
        out = self._result(step.results[0], self.plan.weight_bytes)
        is_trained = self.plan.is_trained(name.rpartition(".")[0])
        needs_grad = self._records and (x.needs_grad or is_trained)
        is_fused = self.plan.fuses_norms and not self.plan.autocast_bytes
        single = x if is_fused else self.to(x._replace(numel=out.numel), FLOAT32_BYTES)
        scales = self._result(step.extras[0], FLOAT32_BYTES)
        if not is_fused:
            self.new(out.numel, FLOAT32_BYTES)
        self._count_trained([name])
        if needs_grad:
            self._keep(x, single, scales)
            if is_trained and not is_fused:
                self._keep(self._like(out))
            self.tape.mark(2 * out.numel * (out.item_bytes if is_fused else FLOAT32_BYTES))
        return out._replace(needs_grad=needs_grad)

    def _save(self, step: Operation, known: Sequence[Array | None], needs: Sequence[bool], item_bytes: int) -> None:
        places = dict.fromkeys(p for saves, need in zip(step.saves, needs, strict=True) if need for p in saves)
        for place in places:
            if place < len(known):
                if (array := known[place]) is not None:
                    self._keep(array)
            else:
                self._keep(self._result(step.extras[place - len(known)], item_bytes))

    def _mark(
        self,
        step: Operation,
        operands: Sequence[Array],
        results: Sequence[Array],
        names: Sequence[str],
        is_trained: Sequence[bool],
    ) -> None:
        """Record the moment of the backward pass with the gradients of the results and of the operands."""
        if not any(step.saves):  # its gradient is passed on unchanged
            return
        of_weights = sum(math.prod(self.weights[n]) for n, t in zip(names, is_trained, strict=True) if t)
        in_use = sum(a.num_bytes for a in results if a.is_float)
        # An operand may be a part of its array: gradients of an elementwise function are as large as its results.
        most = None if names or step.length else in_use
        in_use += sum(a.num_bytes if most is None else min(a.num_bytes, most) for a in operands if a.needs_grad)
        self.tape.mark(in_use + of_weights * self.plan.weight_bytes)

    def _target_bytes(self, kind: str, taken: Sequence[Array], *, has_weights: bool) -> int:
        """Return the bytes of an element of an operation's results."""
        compute, weight = self.plan.autocast_bytes, self.plan.weight_bytes
        if kind in ("float32", "complex") or (kind == "single" and compute):
            return FLOAT32_BYTES
        if kind == "weights":
            return weight
        if kind == "compute":
            return compute or weight
        if kind in _HALF and compute:
            return compute
        floats = [x.item_bytes for x in taken if x.is_float]
        return max([*floats, *([weight] if has_weights or not floats else [])])

    def _cast(self, kind: str, x: Array, part: int) -> Array:
        """Return an operand as autocast casts it; `part` is the count of its elements that are read, -1 for all.

        Without autocast the model itself casts the inputs of products with a weight: a norm with 16-bit weights, for
        example, computes in float32 and returns 16 bits, which a recording of float32 weights does not show.
        """
        if not x.is_float:
            return x
        if not self.plan.autocast_bytes:
            return self.to(x, self.plan.weight_bytes) if kind in _WITH_WEIGHT else x
        item_bytes = self.plan.compute_bytes if kind in _HALF else FLOAT32_BYTES if kind == "single" else x.item_bytes
        if item_bytes != x.item_bytes and part >= 0:
            x = x._replace(numel=self._counts[part])
        return self.to(x, item_bytes)

    def _cast_weight(self, kind: str, name: str, *, trained: bool) -> Array | None:
        """Return the copy that autocast makes of a weight; None if it uses the weight itself."""
        if not self.plan.compute_bytes or kind not in _HALF:
            return None
        return self._half_copy(name, math.prod(self.weights[name]), self.plan.weight_bytes, trained=trained)

    def _half_copy(self, name: str, num_weights: int, item_bytes: int, *, trained: bool) -> Array | None:
        if not self.plan.compute_bytes or item_bytes == self.plan.compute_bytes:
            return None
        if name in self.tape.casts:
            return self.tape.casts[name]
        copy = self.new(num_weights, self.plan.compute_bytes)
        if trained:
            self.tape.casts[name] = copy
        return copy

    def _count_trained(self, names: Sequence[str]) -> None:
        if self._records:
            here = (name for name in names if self.plan.is_trained_here(name.rpartition(".")[0]))
            self.tape.trained_bytes += sum(math.prod(self.weights[n]) for n in here) * self.plan.weight_bytes

    def _result(self, result: Result, item_bytes: int, *, length: int = 0, needs_grad: bool = False) -> Array:
        numel = self._counts[result.count]
        if result.item_bytes:
            return self.new(numel, result.item_bytes)._replace(is_float=False)
        return self._product(numel, length, item_bytes=item_bytes or self.plan.weight_bytes, needs_grad=needs_grad)

    def _product(self, numel: int, length: int, *, item_bytes: int, needs_grad: bool) -> Array:
        """Return the result of a product of vectors of this length, which selective checkpointing may keep."""
        if self._selected is None or length < MIN_KEPT_LENGTH:
            return self.new(numel, item_bytes, needs_grad=needs_grad)
        if self._is_again:
            return self._selected.pop(0)._replace(needs_grad=needs_grad)
        result = self.new(numel, item_bytes)
        self._selected.append(result)
        self.tape.keep(result)  # never offloaded
        return result

    # -- arrays

    def new(self, numel: int, item_bytes: int, *, needs_grad: bool = False, channels: int = 0) -> Array:
        """Return a new array."""
        storage = Storage(self.tape.meter, numel * item_bytes)
        return Array(numel, item_bytes, needs_grad, storage, True, channels)

    def to(self, x: Array, item_bytes: int) -> Array:
        """Return x in another item size; unchanged if it already has it."""
        if x.item_bytes == item_bytes:
            return x
        return self.new(x.numel, item_bytes, needs_grad=x.needs_grad, channels=x.channels)

    def _like(self, x: Array) -> Array:
        return self.new(x.numel, x.item_bytes, needs_grad=x.needs_grad, channels=x.channels)

    def _cast_input(self, x: Array) -> Array:
        return self.to(x, self.plan.compute_bytes or x.item_bytes)

    def _keep(self, *arrays: Array) -> None:
        if self.plan.offloads and not self._is_inside:
            return
        for array in arrays:
            self.tape.keep(array)

    # -- quantized layers

    def _multiply_quantized(self, path: str, x: Array, num_out: int, form: QuantizedFormat) -> Array:
        """Return the product with a quantized weight (`modules/quantization/linear.py`), which saves nothing.

        The weight is unpacked in both passes. If inputs are rounded, inputs and gradients are held in float32 and in 8
        bits, and their products in float32.
        """
        shape = self.weights[f"{path}.weight"]
        taken = self._cast_input(x)
        num_weights, item = math.prod(shape), taken.item_bytes
        if form.rounds_inputs:
            working = _rounding_bytes(x.numel, num_out)
        else:
            working = [num_weights * form.unpacking_bytes(item)]
        for num_bytes in working:
            self.new(num_bytes, 1)
        unpacked = self.new(0 if form.rounds_inputs else num_weights, item)
        out = self._product(num_out, shape[1], item_bytes=item, needs_grad=self._records and x.needs_grad)
        del unpacked
        if out.needs_grad:
            in_product = num_weights * item + taken.num_bytes
            working = [num_weights * form.unpacking_bytes(item), in_product]
            if form.rounds_inputs == "int8":  # float8 has no such product for gradients: it is unpacked
                working = [out.num_bytes + size for size in _rounding_bytes(num_out, x.numel)]
            self.tape.mark(out.num_bytes + max(working))
        return out

    # -- adapters

    def _with_adapter(self, path: str, x: Array, out: Array, weight: Shape) -> Array:
        """Return a layer's output plus its adapter's, if any (as in peft's `Linear.forward` and `_ConvNd.forward`)."""
        adapter = self.plan.adapter_on(path)
        if adapter is None:
            return out
        if adapter.decomposes:
            x = self._apply_magnitudes(x, weight, adapter)
        is_cast = adapter.has_dropout or not self.plan.compute_bytes or adapter.item_bytes != FLOAT32_BYTES
        taken = self.to(x, adapter.item_bytes) if is_cast else x  # as `delta_adapter.layer_input`
        if adapter.has_dropout and self._records:
            self._keep(self.new(taken.numel, 1))
            taken = self._like(taken)
        high = adapter.memory.walk(adapter.settings_of(path, weight), self, path, weight, taken, out)
        del taken
        scaled = self._like(high)
        del high
        result = self.add(out, scaled)
        del scaled
        result = self.to(result, out.item_bytes)
        return self._scale_channels(result) if adapter.decomposes == "outputs" else result

    def _scale_channels(self, x: Array) -> Array:
        """Return x times trained factors of its channels, a product that saves x."""
        if self._records:
            self._keep(x)
        out = self._like(x)._replace(needs_grad=self._records)
        if self._records:
            self.tape.mark(3 * out.num_bytes)
        return out

    def _apply_magnitudes(self, x: Array, weight: Shape, adapter: AdapterPlan) -> Array:
        """Return a layer's input with DoRA's magnitudes, after its norms (`modules/adapters/decomposition.py`)."""
        magnitudes_bytes = math.prod(adapter.magnitudes(weight)) * FLOAT32_BYTES
        self.tape.trained_bytes += magnitudes_bytes if self._records else 0
        sizes = (math.prod(weight),) * 3  # the weight and its change in float32, and their sum
        norms = [self.new(size, FLOAT32_BYTES) for size in sizes]
        del norms
        return x if adapter.decomposes == "outputs" else self._scale_channels(x)

    def frozen_product(self, path: str, x: Array, weight: Shape, *, channels: int, out: Array) -> Array:
        """Return the product of x and a frozen matrix of an adapter, named `path`, of the shape `weight`."""
        assert self.plan.adapter is not None
        taken = self._cast_input(x)
        copy = self._half_copy(path, math.prod(weight), self.plan.adapter.item_bytes, trained=False)
        numel, needs_grad = out.numel // out.channels * channels, self._records and x.needs_grad
        result = self._product(numel, taken.channels, item_bytes=taken.item_bytes, needs_grad=needs_grad)
        if self._records and copy is not None:
            self._keep(copy)
        return result._replace(channels=channels)

    def adapter_product(
        self, path: str, x: Array, trained: Mapping[str, Shape], *, channels: int, out: Array, composed: int = 0
    ) -> Array:
        """Return a product of an adapter, with `channels` and otherwise the shape of the layer's output `out`.

        `trained` are the shapes of the adapter's trained weights for it: the weight itself, or the factors of a weight
        with `composed` elements that each pass computes from them. `path` names the weight in the cache of casts.
        """
        assert self.plan.adapter is not None
        item_bytes = self.plan.adapter.item_bytes
        num_trained = sum(math.prod(shape) for shape in trained.values())
        self.tape.trained_bytes += num_trained * item_bytes if self._records else 0
        taken = self._cast_input(x)
        if composed:
            weight: Array | None = self.new(composed, self.plan.compute_bytes or item_bytes)
        else:
            weight = self._half_copy(path, num_trained, item_bytes, trained=True)
        numel = out.numel // out.channels * channels
        result = self._product(numel, taken.channels, item_bytes=taken.item_bytes, needs_grad=self._records)
        if self._records:
            self._keep(taken, *([weight] if weight is not None else []))
            self.tape.mark(result.num_bytes + taken.num_bytes)
        return result._replace(channels=channels)

    def own_product(self, x: Array, weight: Shape, *, out: Array) -> Array:
        """Return the product of a layer's frozen weight and an adapter's result; only a convolution saves its input."""
        taken = self._cast_input(x)
        result = self._product(out.numel, taken.channels, item_bytes=taken.item_bytes, needs_grad=self._records)
        if self._records and len(weight) > 2:
            self._keep(taken)
        return result._replace(channels=weight[0])

    def add(self, x: Array, y: Array) -> Array:
        """Return the sum of two arrays, which saves neither; y may be smaller and is then broadcast."""
        item_bytes = max(x.item_bytes, y.item_bytes)
        return self.new(x.numel, item_bytes, needs_grad=x.needs_grad or y.needs_grad, channels=x.channels)

    def product(self, x: Array, y: Array) -> Array:
        """Return the product of two arrays, which saves both."""
        out = self.add(x, y)
        if out.needs_grad:
            self._keep(x, y)
            self.tape.mark(2 * out.num_bytes)
        return out


def _rounding_bytes(num_inputs: int, num_outputs: int) -> list[int]:
    """Return the bytes in use while inputs are rounded, and while their product is scaled."""
    return [3 * FLOAT32_BYTES * num_inputs, num_inputs + 3 * FLOAT32_BYTES * num_outputs]
