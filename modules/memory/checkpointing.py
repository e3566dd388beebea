"""Gradient checkpointing: the only implementation, for every part of every model.

Always non-reentrant. The reentrant kind loses gradients where no input requires one (a LoRA on a frozen base), fails
where nothing inside requires one (a part that was frozen in mid-run: "none of output has requires_grad=True"), and
cannot be nested in a truncated denoising loop. The non-reentrant kind is exact in all of these cases (Chen et al. 2016
for the idea; torch.utils.checkpoint for the implementation).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from modules.memory.activations import offloaded_activations
from modules.memory.compiled_blocks import Compilation, CompiledForward
from modules.memory.offload import OffloadedForward, offload_layers
from modules.memory.pass_copies import copies_of, given_copies, layers_with_copies
from modules.memory.transfers import Transfers
from modules.settings.shared_types import MIN_KEPT_LENGTH, CheckpointMode
from modules.system.devices import Device

Forward = Callable[..., Any]

_NUM_CHECKED = 8
"""How many passes of a block torch compares with their recomputation: the shape, dtype and device of each saved tensor,
which takes the host 1.5 microseconds for each. It always compares their number.
"""
_ATEN = torch.ops.aten
# The index of the argument with the weight in each product, of shape (out, in, ...) or, as the last axes, (in, out).
_PRODUCTS: dict[object, int] = {
    _ATEN.mm.default: 1,
    _ATEN.addmm.default: 2,
    _ATEN.bmm.default: 1,
    _ATEN.baddbmm.default: 2,
    _ATEN.convolution.default: 1,
}
_ATTENTION = frozenset(
    {
        _ATEN._scaled_dot_product_flash_attention.default,
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
        _ATEN._scaled_dot_product_efficient_attention.default,
        _ATEN._scaled_dot_product_cudnn_attention.default,
    }
)


def create_checkpointed_forward(
    module: nn.Module,
    *,
    train_device: Device,
    temp_device: Device,
    mode: CheckpointMode = "whole",
    block_types: Sequence[type[nn.Module]] = (),
    transformer_types: Sequence[type[nn.Module]] = (),
    chosen_blocks: Collection[str] = (),
    offload_activations: bool = False,
    offload_fraction: float = 0.0,
    resident: Collection[nn.Parameter] = (),
    entry: str = "forward",
    compilation: Compilation | None = None,
) -> Forward:
    """Make a module's forward pass use checkpointing, and return the callable that runs it.

    `mode` selects the modules whose inputs alone are saved. "off": none; "whole": the module itself; "block": each
    submodule of a class in `block_types`; "transformer": of one in `transformer_types`; "auto": the blocks whose names,
    as in the estimate, are in `chosen_blocks`; "selective": as "block", but the results of matrix products,
    convolutions and attention are saved, too, so that only fast operations are computed again (torch's selective
    activation checkpointing; not together with offloaded layers).

    With `offload_activations` the tensors saved between forward and backward are on `temp_device` and are fetched to
    `train_device` when the backward pass needs them. `offload_fraction` of the weights of the blocks, except the
    `resident` ones, stay on `temp_device` and are copied to `train_device` while their block is computed
    (`modules/memory/offload.py`). With a `compilation` the blocks are compiled, inside of checkpointing and offloading
    (`modules/memory/compiled_blocks.py`). `entry` is the method that runs the module, if that is not its forward pass,
    such as the `decode` of a VAE. Calling this again on the same module replaces the previous setup; a `Placement` made
    afterwards moves the weights to their devices. Without gradients (`no_grad`) nothing is computed twice.

    The gradients are bit-identical to the plain forward's; offloaded ones too, as copying is lossless. Compiled blocks
    are bit-identical to themselves.
    """
    for wrapped, name in _wrapped_modules(module, entry):
        delattr(wrapped, name)
    blocks = [m for m in module.modules() if isinstance(m, tuple(block_types))]
    if compilation is not None:
        compilation.compile_in_place(blocks)
    transfers = Transfers(train_device, temp_device)
    layers = offload_layers(blocks, fraction=offload_fraction, resident=resident, transfers=transfers)
    for target, name in _targets(module, entry, blocks, tuple(transformer_types), mode, chosen_blocks):
        plain, is_mps = getattr(target, name), train_device.type == "mps"
        forward = _CheckpointedForward(target, plain, keeps_products=mode == "selective", restores_mps=is_mps)
        setattr(target, name, forward)
    enter: Forward = module.__call__ if entry == "forward" else getattr(module, entry)
    if layers is None and not offload_activations:
        return enter

    def run(*args: Any, **kwargs: Any) -> Any:
        if layers is not None:
            layers.begin()
        keeps = offload_activations and torch.is_grad_enabled()
        with offloaded_activations(module, transfers) if keeps else nullcontext():
            return enter(*args, **kwargs)

    return run


def offloaded_weights(module: nn.Module) -> list[nn.Parameter]:
    """Return the weights of a module that stay on the offload device even while the module runs."""
    forwards = (_offloaded_forward(m.__dict__.get("forward")) for m in module.modules())
    return [weight for forward in forwards if forward is not None for weight in forward.weights]


class _CheckpointedForward:
    """A forward pass that is recomputed in the backward pass instead of being saved.

    The second pass uses the copies of weights that the first one had (`modules/memory/pass_copies.py`). The state of
    the random generators is kept for it only if the module draws from them: keeping and restoring it takes the host
    about as long as starting ten kernels, for each block. With `restores_mps` the state of an Apple GPU is kept here.
    """

    def __init__(
        self, module: nn.Module, plain: Forward, *, keeps_products: bool = False, restores_mps: bool = False
    ) -> None:
        self.plain = plain
        self._module = module
        self._with_dropout: list[nn.Module] | None = None
        self._with_copies: list[nn.Module] | None = None
        self._restores_mps = restores_mps
        self._run = _without_autocast_cache(plain) if keeps_products else plain
        self._num_passes = 0
        self._options: dict[str, Any] = {"use_reentrant": False}
        if keeps_products:
            self._options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.plain(*args, **kwargs)
        options = {**self._options, "preserve_rng_state": self._draws()}
        self._num_passes += 1
        if self._num_passes > _NUM_CHECKED:
            options["determinism_check"] = "none"
        run = self._with_present_copies()
        if self._restores_mps and options["preserve_rng_state"]:
            run = _with_same_draws_on_mps(run)
        if any(isinstance(value, torch.Tensor) for value in args):
            return checkpoint(run, *args, **options, **kwargs)
        # Torch finds the devices whose random state it must restore from the positional arguments only: an encoder
        # called with keyword arguments alone would get a different dropout mask on a GPU.
        return checkpoint(partial(_call_with, run), kwargs, *args, **options)

    def _draws(self) -> bool:
        """Return whether a pass draws random numbers: whether any dropout in the module is on."""
        if self._with_dropout is None:
            self._with_dropout = [m for m in self._module.modules() if _has_dropout(m)]
        return any(m.training for m in self._with_dropout)

    def _with_present_copies(self) -> Forward:
        """Return the pass with the copies of weights that there are now, whenever it runs."""
        if self._with_copies is None:
            self._with_copies = layers_with_copies(self._module)
        layers = self._with_copies
        copies = [copies_of(layer) for layer in layers]
        if not any(copies):
            return self._run

        def run(*args: Any, **kwargs: Any) -> Any:
            with given_copies(layers, copies):
                return self._run(*args, **kwargs)

        return run


def _with_same_draws_on_mps(run: Forward) -> Forward:
    """Return a pass that draws the same numbers on an Apple GPU each time that it runs.

    torch.utils.checkpoint keeps a device's random state only if the device's module is `_initialized`, a name that
    `torch.mps` does not have: the second pass would drop other values than the first one.
    """
    state = torch.mps.get_rng_state()

    def run_again(*args: Any, **kwargs: Any) -> Any:
        before = torch.mps.get_rng_state()
        torch.mps.set_rng_state(state)
        try:
            return run(*args, **kwargs)
        finally:  # a recomputation ends with an exception once all needed tensors exist
            if not torch.equal(before, state):  # it is one: the first pass has drawn what it drew
                torch.mps.set_rng_state(before)

    return run_again


def _call_with(run: Forward, kwargs: dict[str, Any], *args: Any) -> Any:
    return run(*args, **kwargs)


def _has_dropout(module: nn.Module) -> bool:
    """Return whether a module drops anything while it is in training mode.

    Functional dropout has its probability in an attribute of the module, or of a record of the module's; all such names
    contain "drop". Anything in doubt counts.
    """
    if "Dropout" in type(module).__name__:
        return getattr(module, "p", getattr(module, "probability", 1.0)) != 0.0
    records = [r for v in vars(module).values() if isinstance(v, Mapping) for r in v.values() if hasattr(r, "__dict__")]
    return any(
        isinstance(value, float) and value != 0.0
        for holder in (module, *(r for r in records if not isinstance(r, nn.Module)))
        for name, value in vars(holder).items()
        if "drop" in name
    )


def _without_autocast_cache(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward pass that casts each weight anew under autocast.

    Selective checkpointing pairs every operation of the second pass with one of the first. Autocast keeps the casts of
    trained weights until its context ends, so that a later step of a denoising loop would have fewer of them than its
    second pass.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        was_enabled = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            return plain(*args, **kwargs)
        finally:
            torch.set_autocast_cache_enabled(was_enabled)

    return run


def _targets(
    module: nn.Module,
    entry: str,
    blocks: Sequence[nn.Module],
    transformer_types: tuple[type[nn.Module], ...],
    mode: CheckpointMode,
    chosen_blocks: Collection[str],
) -> list[tuple[nn.Module, str]]:
    """Return the modules that are checkpointed, and the method that runs each."""
    if mode == "off":
        return []
    if mode == "whole":
        return [(module, entry)]
    chosen = blocks
    if mode == "transformer":
        chosen = [m for m in module.modules() if isinstance(m, transformer_types)]
    elif mode == "auto":
        # Some versions of transformers have the layers of CLIP inside another module.
        wanted, ends = frozenset(chosen_blocks), tuple(f".{name}" for name in chosen_blocks)
        names = {block: name for name, block in module.named_modules()}
        chosen = [block for block in blocks if names[block] in wanted or names[block].endswith(ends)]
    return [(block, "forward") for block in chosen]


def _policy(_context: object, operation: object, *args: Any, **_kwargs: object) -> CheckpointPolicy:
    """Return whether the result of an operation is kept until the backward pass, or computed again.

    Results are kept that take long to compute for the memory they need: attention, and products of long vectors. The
    products of an adapter's low rank are not.
    """
    keeps = operation in _ATTENTION
    if (place := _PRODUCTS.get(operation)) is not None:
        weight: torch.Tensor = args[place]
        length = weight[0].numel() if operation is _ATEN.convolution.default else weight.shape[-2]
        keeps = length >= MIN_KEPT_LENGTH
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def _wrapped_modules(module: nn.Module, entry: str) -> list[tuple[nn.Module, str]]:
    places = [(module, entry), *((m, "forward") for m in module.modules())]
    is_ours = _CheckpointedForward | OffloadedForward | CompiledForward
    return [place for place in dict.fromkeys(places) if isinstance(place[0].__dict__.get(place[1]), is_ours)]


def _offloaded_forward(forward: object) -> OffloadedForward | None:
    if isinstance(forward, _CheckpointedForward):
        forward = forward.plain
    return forward if isinstance(forward, OffloadedForward) else None
