"""Stage 3: results of the device compared to results of the CPU, at the widths of real models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.normalization import RMSNorm
from diffusers.models.resnet import ResnetBlock2D
from torch import nn

from benchmarks.gpu.models import device_of, small_run
from benchmarks.gpu.stage import Case, Check, Finding, Request, at_most
from benchmarks.loop_speed import run_setup
from modules.families.attention import ATTENTIONS, usable_attentions
from modules.families.parts.fused_norms import fuse_norms
from modules.quantization.linear import QuantizedLinear
from modules.quantization.registry import COMPUTED
from modules.system.devices import CPU, Device, dtype_name, move
from modules.system.factories import load_factory
from trainer.run.training_run import prepare
from trainer.step.loop import train_epoch
from trainer.step.precision import process_settings

# Relative errors by norm: a small multiple of the unit roundoff. bfloat16 has 8 bits of mantissa, float16 has 11.
_ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
_FORMAT_ALLOWED = 2e-2  # of products whose inputs are rounded, and may be rounded the other way
_LOSS_ALLOWED = 1e-3
_SCALE = 2.0**40
_TOKENS, _TINY_TOKENS = 1024, 32
_ODD_TOKENS = (1, 15, 17, 77, 257, 333)  # as of texts and odd sizes: 8-bit products prefer multiples of 16

Function = Callable[..., torch.Tensor]


def cases(request: Request) -> Sequence[Case]:
    """Return the cases of the stage."""
    device = device_of(request)
    tokens, width, heads = (_TINY_TOKENS, 32, 2) if request.is_tiny else (_TOKENS, 1280, 20)
    blocks: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "linear layer": (_build_seeded(lambda: nn.Linear(width, 4 * width)), (2, tokens, width)),
        "convolution": (_build_seeded(lambda: nn.Conv2d(width, width, 3, padding=1)), (1, width, 16, 16)),
        "transformer block": (
            _build_seeded(lambda: BasicTransformerBlock(width, heads, width // heads, activation_fn="geglu")),
            (1, tokens, width),
        ),
        "residual block": (
            _build_seeded(lambda: ResnetBlock2D(in_channels=width, temb_channels=None, groups=8)),
            (1, width, 16, 16),
        ),
        "RMS norm": (_build_seeded(lambda: _fused_norm(width)), (1, tokens, width)),
    }
    return (
        *(Case(name, partial(_block, device, *block)) for name, block in blocks.items()),
        Case("attention", partial(_attentions, device, (1, heads, tokens, width // heads))),
        *(Case(form.label, partial(_format, device, name, tokens, width)) for name, form in COMPUTED.items()),
        Case("training", partial(_training, request)),
        Case("overflow in float16", partial(_overflow, request)),
    )


def _build_seeded(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build()


def _fused_norm(channels: int) -> nn.Module:
    """Return an RMS norm of diffusers, fused as in a run on a GPU."""
    norm: nn.Module = RMSNorm(channels, eps=1e-5)
    nn.init.normal_(next(norm.parameters()))
    fuse_norms(norm)
    return norm


def _block(device: Device, block: nn.Module, shape: tuple[int, ...], _seconds: float) -> Iterator[Finding]:
    """Compare a block's output and the gradient of its input in each dtype, with float32 on the CPU."""
    for dtype, allowed in _ALLOWED.items():
        rounded = block.to(dtype).float()  # the values that the device computes with
        exact = _run_block(rounded, CPU, torch.float32, shape, dtype)
        results = _run_block(block.to(dtype), device, dtype, shape, dtype)
        for what, ours, theirs in zip(("output", "gradient"), results, exact, strict=True):
            yield at_most(f"error of the {what}, {dtype_name(dtype)}", error(ours, theirs), allowed)
    block.to("cpu", torch.float32)


def _run_block(
    block: nn.Module, device: Device, dtype: torch.dtype, shape: tuple[int, ...], rounded_to: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a block's output and the gradient of its input, on the CPU in float32."""
    x = _draw_input(shape, rounded_to, device, dtype)
    with process_settings(num_threads=torch.get_num_threads(), precision="float32", deterministic=False):
        out = block.to(device.torch)(x, *_more_inputs(block))
        (gradient,) = torch.autograd.grad(out.float().square().mean() * out.numel(), x)
    return move(out.detach(), CPU).float(), move(gradient, CPU).float()


def _more_inputs(block: nn.Module) -> tuple[None, ...]:
    return (None,) if isinstance(block, ResnetBlock2D) else ()


def _draw_input(shape: tuple[int, ...], rounded_to: torch.dtype, device: Device, dtype: torch.dtype) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(rounded_to)
    return move(values, device, dtype=dtype).requires_grad_()


def error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the norm of the difference, relative to the norm of the exact values; infinity in place of NaN."""
    relative = float((ours.double() - exact.double()).norm() / exact.double().norm())
    return relative if relative == relative else float("inf")


def _attentions(device: Device, shape: tuple[int, ...], _seconds: float) -> Iterator[Finding]:
    """Compare every attention that runs on the device with PyTorch's own in float32 on the CPU."""
    for dtype, allowed in _ALLOWED.items():
        exact = _run_attention(torch.nn.functional.scaled_dot_product_attention, CPU, torch.float32, shape, dtype)
        for name in usable_attentions(device.type, is_16_bit=dtype != torch.float32):
            spec = ATTENTIONS[name]
            kernel: Function = (
                load_factory(spec.kernel) if spec.kernel else torch.nn.functional.scaled_dot_product_attention
            )
            label = f"{spec.label}, {dtype_name(dtype)}"
            try:
                results = _run_attention(kernel, device, dtype, shape, dtype)
            except Exception as reason:  # noqa: BLE001 - the others are tried
                yield Check(label, f"{type(reason).__name__}: {str(reason)[:200]}", "it runs", False)
                continue
            worst = max(error(ours, theirs) for ours, theirs in zip(results, exact, strict=True))
            yield at_most(f"error of {label}", worst, allowed)


def _run_attention(
    kernel: Function, device: Device, dtype: torch.dtype, shape: tuple[int, ...], rounded_to: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """Return the output of an attention and its three gradients, on the CPU in float32."""
    inputs = [_draw_input(shape, rounded_to, device, dtype).detach().roll(n, -2).requires_grad_() for n in range(3)]
    out = kernel(*inputs)
    gradients = torch.autograd.grad(out.float().square().sum(), inputs)
    return tuple(move(t.detach(), CPU).float() for t in (out, *gradients))


def _format(device: Device, name: str, tokens: int, width: int, _seconds: float) -> Iterator[Finding]:
    """Compare a quantized layer's output and gradient on the device and on the CPU, in bfloat16."""
    if device.type not in COMPUTED[name].devices:
        yield Check("runs on the device", device.type, ", ".join(sorted(COMPUTED[name].devices)), False)
        return
    layer = QuantizedLinear(nn.Linear(width, 2 * width), COMPUTED[name])
    exact, results = (_run_quantized(layer, place, (2, tokens, width)) for place in (CPU, device))
    for what, ours, theirs in zip(("output", "gradient"), results, exact, strict=True):
        yield at_most(f"error of the {what}", error(ours, theirs), _FORMAT_ALLOWED)
    for number in _ODD_TOKENS if COMPUTED[name].rounds_inputs else ():
        exact, results = (_run_quantized(layer, place, (1, number, width)) for place in (CPU, device))
        worst = max(error(ours, theirs) for ours, theirs in zip(results, exact, strict=True))
        yield at_most(f"error of {number} tokens", worst, _FORMAT_ALLOWED)


def _run_quantized(layer: QuantizedLinear, device: Device, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    x = _draw_input(shape, torch.bfloat16, device, torch.bfloat16)
    out = layer.to(device.torch)(x)
    (gradient,) = torch.autograd.grad(out.float().square().sum(), x)
    return move(out.detach(), CPU).float(), move(gradient, CPU).float()


def _training(request: Request, _seconds: float) -> Iterator[Finding]:
    """Compare the weights that an epoch of the demo has trained, on the CPU and on the device, in float32."""
    there, here = (_trained_weights(request, device) for device in (device_of(request), CPU))
    yield at_most("error of the trained weights", error(there, here), _LOSS_ALLOWED)


def _trained_weights(request: Request, device: Device) -> torch.Tensor:
    config = small_run(replace(request, device=device.name), precision="float32")
    with process_settings(num_threads=torch.get_num_threads(), precision="float32", deterministic=False):
        run = prepare(run_setup(config))
        try:
            train_epoch(run.training)
            weights = [p for group in run.model.groups for p in group.parameters.values()]
            return torch.cat([move(p.detach(), CPU).flatten() for p in weights])
        finally:
            run.close()


def _overflow(request: Request, _seconds: float) -> Iterator[Finding]:
    """Train an epoch in float16 whose scaled loss overflows, and check that its steps change no weight."""
    config = small_run(request, precision="float16", max_consecutive_skipped_steps=100)
    device = device_of(request)
    with process_settings(num_threads=torch.get_num_threads(), precision="float16", deterministic=False):
        run = prepare(run_setup(config))
        try:
            run.training.stepper.scaler = torch.amp.GradScaler(device.type, init_scale=_SCALE)
            weights = [p for group in run.model.groups for p in group.parameters.values()]
            before = [p.detach().clone() for p in weights]
            train_epoch(run.training)
            steps, skipped = run.training.counters.step, run.training.counters.num_skipped
            yield Check("steps skipped", f"{skipped} of {steps}", f"{steps}", skipped == steps)
            changed = sum(not torch.equal(p, b) for p, b in zip(weights, before, strict=True))
            yield at_most("weights changed", changed, 0)
            scale = float(run.training.stepper.scaler.get_scale())
            yield at_most("scale of the loss afterwards", scale, _SCALE / 2**steps)
        finally:
            run.close()
