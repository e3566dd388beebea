"""The operations of a forward pass on a tape: each allocates, casts and saves the same as torch's own.

Autocast is CUDA's: matrix products and convolutions in 16 bits, norms in float32, others in the dtype of their inputs
(PyTorch's "Autocast Op Reference"). A trained weight's cast is cached once per pass, a frozen one's is made each time.
The arrays saved for the backward pass follow derivatives.yaml of PyTorch: a linear layer saves its input if the weight
is trained and its weight if the input needs a gradient; a convolution both; a norm its input; attention query, key,
value and its output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from modules.memory.tape import FLOAT32_BYTES, Array, PartPlan, Shape, Storage, Tape
from modules.quantization.spec import QuantizedFormat
from modules.settings.shared_types import LEAST_KEPT_LENGTH


class Walk:
    """Runs a part of a model on a tape, and records the shapes of its weights."""

    def __init__(self, tape: Tape, plan: PartPlan, *, records: bool) -> None:
        """`records`: gradients are needed, as in training; otherwise it is a pass under no_grad."""
        self.tape = tape
        self.plan = plan
        self.weights: dict[str, Shape] = {}
        self.adapter_weights: dict[str, Shape] = {}
        self.quantized: dict[str, int] = {}  # bytes by the name of the weight
        self.kept_of_blocks: dict[str, int] = {}  # what each block keeps for the backward pass, by its name
        self._records = records
        self._is_inside = False
        self._selected: list[Array] | None = None  # results that selective checkpointing keeps of the current block
        self._is_again = False  # that block is being computed again, and takes them from the list

    # -- arrays

    def new(self, shape: Shape, *, item_bytes: int = 0, needs_grad: bool = False) -> Array:
        """Return a new array; the item size defaults to that of the weights."""
        size = item_bytes or self.plan.weight_bytes
        return Array(shape, size, needs_grad, Storage(self.tape.meter, math.prod(shape) * size))

    def to(self, x: Array, item_bytes: int) -> Array:
        """Return x in another item size; unchanged if it already has it."""
        return x if x.item_bytes == item_bytes else self.new(x.shape, item_bytes=item_bytes, needs_grad=x.needs_grad)

    def _like(self, x: Array, shape: Shape | None = None) -> Array:
        return self.new(shape or x.shape, item_bytes=x.item_bytes, needs_grad=x.needs_grad)

    def _computed(self, x: Array) -> Array:
        return self.to(x, self.plan.compute_bytes or x.item_bytes)

    def _keep(self, *arrays: Array) -> None:
        if self.plan.offloads and not self._is_inside:
            return
        for array in arrays:
            self.tape.keep(array)

    # -- layers with weights

    def linear(self, path: str, x: Array, width: int, *, bias: bool = True) -> Array:
        """A linear layer on the last axis, with its adapter if it has one."""
        self._weigh(path, (width, x.shape[-1]), bias)
        if (form := self.plan.format_of(path)) is not None:
            return self._with_adapter(path, x, self._quantized(path, x, width, form), 1, width)
        trained = self._records and self.plan.is_trained(path)
        out = self._product(path, x, (*x.shape[:-1], width), width * x.shape[-1], trained=trained, keeps_input=trained)
        return self._with_adapter(path, x, out, 1, width)

    def conv(self, path: str, x: Array, width: int, *, kernel: int = 3, stride: int = 1) -> Array:
        """A convolution (B, C, H, W) that keeps the size, or divides it by the stride."""
        batch, channels, height, rows = x.shape
        self._weigh(path, (width, channels, kernel, kernel), True)
        shape = (batch, width, height // stride, rows // stride)
        trained = self._records and self.plan.is_trained(path)
        out = self._product(path, x, shape, width * channels * kernel**2, trained=trained, keeps_input=True)
        return self._with_adapter(path, x, out, kernel, width)

    def group_norm(self, path: str, x: Array) -> Array:
        """A group norm over the second axis."""
        return self._norm(path, x, x.shape[1])

    def layer_norm(self, path: str, x: Array) -> Array:
        """A layer norm over the last axis."""
        return self._norm(path, x, x.shape[-1])

    def embedding(self, path: str, shape: Shape, batch: int, tokens: int) -> Array:
        """An embedding lookup: one row of a table for each token."""
        self.weights[f"{path}.weight"] = shape
        trained = self._records and self.plan.is_trained(path)
        self.tape.trained_bytes += math.prod(shape) * self.plan.weight_bytes if trained else 0
        return self.new((batch, tokens, shape[1]), needs_grad=trained or (self._records and self.plan.has_words))

    def _weigh(self, path: str, shape: Shape, bias: bool) -> None:
        self.weights[f"{path}.weight"] = shape
        if bias:
            self.weights[f"{path}.bias"] = (shape[0],)
        if self._records and self.plan.is_trained_here(path):
            self.tape.trained_bytes += (math.prod(shape) + (shape[0] if bias else 0)) * self.plan.weight_bytes

    def _product(
        self, path: str, x: Array, shape: Shape, num_weights: int, *, trained: bool, keeps_input: bool
    ) -> Array:
        """Return a matrix product with a layer's weight; saves the input if `keeps_input` and anything is trained."""
        taken = self._computed(x)
        is_trained = self.plan.is_trained(path)  # also without gradients, when `trained` is False
        weight = self._cast_weight(path, num_weights, self.plan.weight_bytes, trained=is_trained)
        needs_grad = self._records and (x.needs_grad or trained)
        length = num_weights // (shape[1] if len(shape) == 4 else shape[-1])
        out = self._result(shape, length, item_bytes=taken.item_bytes, needs_grad=needs_grad)
        if needs_grad:
            if keeps_input:
                self._keep(taken)
            if weight is not None and (x.needs_grad or len(shape) == 4):
                self._keep(weight)
            self.tape.mark(out.num_bytes + taken.num_bytes + (num_weights * self.plan.weight_bytes if trained else 0))
        return out

    def _quantized(self, path: str, x: Array, width: int, form: QuantizedFormat) -> Array:
        """Return the product with a quantized weight (`modules/quantization/linear.py`), which saves nothing.

        The weight is unpacked in both passes. Rounded inputs are there in float32 and in 8 bits, and the product in
        float32; a weight that a file has packed is rounded, too.
        """
        shape = (width, x.shape[-1])
        assert self.plan.quantized is not None
        self.quantized[f"{path}.weight"] = self.plan.quantized.stored_bytes(path, shape)
        taken = self._computed(x)
        num_weights, item = math.prod(shape), taken.item_bytes
        result_shape = (*x.shape[:-1], width)
        if form.rounds_inputs:
            num_out = math.prod(result_shape)
            working = [3 * FLOAT32_BYTES * math.prod(x.shape), math.prod(x.shape) + 3 * FLOAT32_BYTES * num_out]
            if form.is_stored:
                working = [num_weights * form.working_bytes, *(num_weights + size for size in working)]
        else:
            working = [num_weights * form.unpacking_bytes(item)]
        for num_bytes in working:
            self.new((num_bytes,), item_bytes=1)
        unpacked = self.new((0 if form.rounds_inputs else num_weights,), item_bytes=item)
        out = self._result(result_shape, x.shape[-1], item_bytes=item, needs_grad=self._records and x.needs_grad)
        del unpacked
        if out.needs_grad:
            in_product = num_weights * item + taken.num_bytes
            self.tape.mark(out.num_bytes + max(num_weights * form.unpacking_bytes(item), in_product))
        return out

    def _cast_weight(self, path: str, num_weights: int, item_bytes: int, *, trained: bool) -> Array | None:
        """Return the 16-bit copy that autocast makes of a weight, or None where it uses the weight itself."""
        if not self.plan.compute_bytes or item_bytes == self.plan.compute_bytes:
            return None
        if path in self.tape.casts:
            return self.tape.casts[path]
        copy = self.new((num_weights,), item_bytes=self.plan.compute_bytes)
        if trained:
            self.tape.casts[path] = copy
        return copy

    def _with_adapter(self, path: str, x: Array, out: Array, kernel: int, width: int) -> Array:
        """Return a layer's output plus its adapter's, if any (as in peft's `Linear.forward` and `_ConvNd.forward`)."""
        adapter = self.plan.adapter_on(path)
        if adapter is None:
            return out
        is_conv = len(x.shape) == 4
        channels = x.shape[1] if is_conv else x.shape[-1]
        weight = (width, channels, *((kernel, kernel) if is_conv else ()))
        if adapter.decomposes:
            x = self._decomposed(path, x, weight, adapter.decomposes)
        is_cast = adapter.has_dropout or not self.plan.compute_bytes or adapter.item_bytes != FLOAT32_BYTES
        taken = self.to(x, adapter.item_bytes) if is_cast else x  # (`modules/adapters/delta_adapter.py`)
        if adapter.has_dropout and self._records:
            self._keep(self.new(taken.shape, item_bytes=1))
            taken = self._like(taken)
        settings = adapter.settings if adapter.settings_at is None else adapter.settings_at(path, weight)
        high = adapter.walk(settings, self, path, weight, taken, out)
        del taken
        scaled = self._like(high)
        del high
        result = self.new(
            out.shape,
            item_bytes=max(out.item_bytes, scaled.item_bytes),
            needs_grad=out.needs_grad or scaled.needs_grad,
        )
        del scaled
        result = self.to(result, out.item_bytes)
        return self._scaled(result) if adapter.decomposes == "outputs" else result

    def _scaled(self, x: Array) -> Array:
        """Return x times trained factors of its channels, which saves x, and what is computed meanwhile."""
        if self._records:
            self._keep(x)
        out = self.new(x.shape, item_bytes=x.item_bytes, needs_grad=self._records)
        if self._records:
            self.tape.mark(3 * out.num_bytes)
        return out

    def _decomposed(self, path: str, x: Array, weight: Shape, axis: str) -> Array:
        """Return the input of a layer with DoRA's magnitudes (`modules/adapters/decomposition.py`), after its norms."""
        is_per_output = axis == "outputs"
        shape = (weight[0] if is_per_output else 1, 1 if is_per_output else weight[1], *(1 for _ in weight[2:]))
        self.adapter_weights[f"{path}.dora.magnitudes"] = shape
        self.tape.trained_bytes += math.prod(shape) * FLOAT32_BYTES if self._records else 0
        sizes = (math.prod(weight),) * 3  # the weight and its change in float32, and their sum
        norms = [self.new((size,), item_bytes=FLOAT32_BYTES) for size in sizes]
        del norms
        return x if is_per_output else self._scaled(x)

    def frozen_product(self, path: str, x: Array, weight: Shape, *, channels: int, out: Array) -> Array:
        """A matrix product with a frozen matrix of an adapter, named `path`, of the shape `weight`."""
        assert self.plan.adapter is not None
        self.weights[path] = weight
        taken = self._computed(x)
        copy = self._cast_weight(path, math.prod(weight), self.plan.adapter.item_bytes, trained=False)
        shape = (out.shape[0], channels, *out.shape[2:]) if len(out.shape) == 4 else (*out.shape[:-1], channels)
        length = taken.shape[1] if len(taken.shape) == 4 else taken.shape[-1]
        result = self._result(shape, length, item_bytes=taken.item_bytes, needs_grad=self._records and x.needs_grad)
        if self._records and copy is not None:
            self._keep(copy)
        return result

    def adapter_product(
        self, path: str, x: Array, trained: Mapping[str, Shape], *, channels: int, out: Array, composed: int = 0
    ) -> Array:
        """A matrix product of an adapter, with `channels` and otherwise the shape of the layer's output `out`.

        `trained` are the shapes of the adapter's trained weights for it, by name below `path`: the weight itself, or
        the factors of a weight with `composed` elements that each pass computes from them.
        """
        assert self.plan.adapter is not None
        item_bytes = self.plan.adapter.item_bytes
        num_trained = sum(math.prod(shape) for shape in trained.values())
        self.adapter_weights |= {f"{path}.{name}": shape for name, shape in trained.items()}
        self.tape.trained_bytes += num_trained * item_bytes if self._records else 0
        taken = self._computed(x)
        if composed:
            weight: Array | None = self.new((composed,), item_bytes=self.plan.compute_bytes or item_bytes)
        else:
            weight = self._cast_weight(path, num_trained, item_bytes, trained=True)
        shape = (out.shape[0], channels, *out.shape[2:]) if len(out.shape) == 4 else (*out.shape[:-1], channels)
        length = taken.shape[1] if len(taken.shape) == 4 else taken.shape[-1]
        result = self._result(shape, length, item_bytes=taken.item_bytes, needs_grad=self._records)
        if self._records:
            self._keep(taken, *([weight] if weight is not None else []))
            self.tape.mark(result.num_bytes + taken.num_bytes)
        return result

    def _norm(self, path: str, x: Array, width: int) -> Array:
        self._weigh(path, (width,), True)
        taken = self.to(x, FLOAT32_BYTES) if self.plan.compute_bytes else x
        needs_grad = self._records and (x.needs_grad or self.plan.is_trained(path))
        out = self.new(x.shape, item_bytes=taken.item_bytes, needs_grad=needs_grad)
        if needs_grad:
            self._keep(taken)
            self.tape.mark(2 * out.num_bytes)
        return out

    # -- operations without weights

    def activation(self, x: Array) -> Array:
        """An activation function that saves its input, such as SiLU and GELU."""
        out = self._like(x)
        if x.needs_grad:
            self._keep(x)
            self.tape.mark(2 * out.num_bytes)
        return out

    def product(self, x: Array, y: Array) -> Array:
        """A product of two arrays, which saves both."""
        out = self.new(x.shape, item_bytes=max(x.item_bytes, y.item_bytes), needs_grad=x.needs_grad or y.needs_grad)
        if out.needs_grad:
            self._keep(x, y)
            self.tape.mark(2 * out.num_bytes)
        return out

    def add(self, x: Array, y: Array) -> Array:
        """A sum of two arrays, which saves neither; y may be smaller and is then broadcast."""
        return self.new(x.shape, item_bytes=max(x.item_bytes, y.item_bytes), needs_grad=x.needs_grad or y.needs_grad)

    def copy(self, x: Array) -> Array:
        """An operation with an output of the same size that saves nothing, such as a division by a number."""
        return self._like(x)

    def cat(self, x: Array, y: Array) -> Array:
        """Two arrays (B, C, H, W) concatenated along their channels."""
        shape = (x.shape[0], x.shape[1] + y.shape[1], *x.shape[2:])
        needs_grad = x.needs_grad or y.needs_grad
        return self.new(shape, item_bytes=max(x.item_bytes, y.item_bytes), needs_grad=needs_grad)

    def upsampled(self, x: Array) -> Array:
        """Upsampling to twice the width and height."""
        return self._like(x, (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3]))

    def attention(self, query: Array, key: Array, value: Array, *, heads: int) -> Array:
        """Scaled dot-product attention by a fused kernel: the tokens-by-tokens matrix is never materialized."""
        query, key, value = self._computed(query), self._computed(key), self._computed(value)
        needs_grad = self._records and (query.needs_grad or key.needs_grad or value.needs_grad)
        out = self._result(query.shape, LEAST_KEPT_LENGTH, item_bytes=query.item_bytes, needs_grad=needs_grad)
        if needs_grad:
            batch, tokens = query.shape[:2]
            self._keep(query, key, value, out, self.new((batch, heads, tokens), item_bytes=FLOAT32_BYTES))
            self.tape.mark(2 * out.num_bytes + query.num_bytes + key.num_bytes + value.num_bytes)
        return out

    # -- checkpointing

    def _result(self, shape: Shape, length: int, *, item_bytes: int, needs_grad: bool) -> Array:
        """Return the result of a product of vectors of this length, which selective checkpointing may keep."""
        if self._selected is None or length < LEAST_KEPT_LENGTH:
            return self.new(shape, item_bytes=item_bytes, needs_grad=needs_grad)
        if self._is_again:
            return replace(self._selected.pop(0), needs_grad=needs_grad)
        result = self.new(shape, item_bytes=item_bytes)
        self._selected.append(result)
        self.tape.keep(result)  # never offloaded
        return result

    def block(self, path: str, run: Callable[..., Array], *inputs: Array, is_transformer: bool = False) -> Array:
        """Run one of the blocks that checkpointing per block applies to, by its name."""
        modes = ("block", "selective", "transformer") if is_transformer else ("block", "selective")
        if self.plan.checkpointing in modes or path in self.plan.checkpointed_blocks:
            return self._checkpointed(run, *inputs)
        before = self.tape.kept_bytes
        result = run(*inputs)
        self.kept_of_blocks[path] = self.tape.kept_bytes - before
        return result

    def whole(self, run: Callable[..., Array], *inputs: Array) -> Array:
        """Run the whole part."""
        return self._checkpointed(run, *inputs) if self.plan.checkpointing == "whole" else run(*inputs)

    def _checkpointed(self, run: Callable[..., Array], *inputs: Array) -> Array:
        """Save only the inputs, and record the memory for recomputing the block in the backward pass."""
        if not self._records:
            return run(*inputs)
        self._keep(*inputs)
        self._records = False
        self._selected = [] if self.plan.checkpointing == "selective" else None
        result = run(*inputs)
        self._records = True
        # The recomputation in the backward pass: on a tape of its own, beside everything saved so far.
        outer, was_inside = self.tape, self._is_inside
        self.tape, self._is_inside, self._is_again = Tape(), True, True
        again = run(*inputs)
        outer.take_over(self.tape, gradient_bytes=again.num_bytes)
        self.tape, self._is_inside, self._is_again, self._selected = outer, was_inside, False, None
        return replace(result, needs_grad=True)
