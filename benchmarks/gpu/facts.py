"""Stage 1: the device and its driver, and how fast it multiplies, copies and starts kernels."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from benchmarks.full_size import matrix_flops_per_second
from benchmarks.gpu.markdown import MACHINE
from benchmarks.gpu.models import device_of
from benchmarks.gpu.stage import Case, Check, Finding, Request
from benchmarks.measure import median_seconds, wait_for
from benchmarks.rows import Row
from modules.system.devices import DTYPES, Device
from trainer.run.machine import name_of
from trainer.run.recipe import driver_version

_NUM_LAUNCHES = 2000
_MIB = 1 << 20


def cases(request: Request) -> Sequence[Case]:
    """Return the cases of the stage."""
    device, is_tiny = device_of(request), request.is_tiny
    side, size = (256, _MIB) if is_tiny else (8192, 1024 * _MIB)
    return (
        Case("device", lambda _: _machine(device)),
        Case("matrix products", lambda _: _products(device, side)),
        Case("memory", lambda _: _memory(device, size)),
        Case("starting kernels", lambda _: _launches(device)),
    )


def _machine(device: Device) -> Iterator[Finding]:
    facts = {
        "driver": (driver_version() or "unknown: nvidia-smi does not answer") if device.type == "cuda" else "none",
        "torch": torch.__version__,
        "CUDA": torch.version.cuda or torch.version.hip or "none",
        "cuDNN": str(torch.backends.cudnn.version() or "none") if device.type == "cuda" else "none",
        "cores": str(os.cpu_count()),
        "Python": platform.python_version(),
    }
    name = f"{name_of(device)}, " + ", ".join(f"{what} {value}" for what, value in facts.items() if value != "none")
    yield Row(MACHINE, name, numbers={"name": name_of(device), **facts})
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device.torch)
        yield Row("compute capability", f"{major}.{minor}", numbers={"capability": major + minor / 10})
        yield Check("computes in bfloat16", f"capability {major}.{minor}", "8.0 or newer", (major, minor) >= (8, 0))


def _products(device: Device, side: int) -> Iterator[Finding]:
    """Measure products of square matrices in every dtype that the device computes in."""
    for name, dtype in DTYPES.items():
        yield _speed(name, matrix_flops_per_second(device, side=side, dtype=dtype))
    if device.type == "cuda":
        former = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        yield _speed("float32 as TF32", matrix_flops_per_second(device, side=side, dtype=torch.float32))
        torch.set_float32_matmul_precision(former)
    left, right = (torch.randint(-100, 100, (side, side), dtype=torch.int8, device=device.torch) for _ in range(2))
    yield _speed("int8", 2 * side**3 / median_seconds(lambda: torch._int_mm(left, right.T), device, rounds=5))
    if device.type == "cuda" and torch.cuda.get_device_capability(device.torch) >= (8, 9):
        rows, one = (t.float().to(torch.float8_e4m3fn) for t in (left, right)), torch.ones((), device=device.torch)
        first, second = rows
        seconds = median_seconds(
            lambda: torch._scaled_mm(first, second.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
            device,
            rounds=5,
        )
        yield _speed("float8", 2 * side**3 / seconds)


def _speed(name: str, flops_per_second: float) -> Row:
    return Row(name, f"{flops_per_second / 1e12:.3g} TFLOP/s", numbers={"flops_per_second": flops_per_second})


def _memory(device: Device, size: int) -> Iterator[Finding]:
    """Measure reading and writing the device's memory, and copies between it and the computer's."""
    there, result = (torch.ones(size, dtype=torch.uint8, device=device.torch) for _ in range(2))
    seconds = median_seconds(lambda: torch.add(there, 1, out=result), device, rounds=5)
    yield _bandwidth("read and written", 2 * size / seconds)
    here = torch.ones(size, dtype=torch.uint8)
    pinned = here.pin_memory() if device.type == "cuda" else here.clone()
    for name, to, source in (
        ("to the device, pinned", there, pinned),
        ("to the device, not pinned", there, here),
        ("from the device, pinned", pinned, there),
    ):
        seconds = median_seconds(partial(to.copy_, source, non_blocking=True), device, rounds=5)
        yield _bandwidth(name, size / seconds)


def _bandwidth(name: str, bytes_per_second: float) -> Row:
    return Row(name, f"{bytes_per_second / 1e9:.3g} GB/s", numbers={"bytes_per_second": bytes_per_second})


def _launches(device: Device) -> Iterator[Finding]:
    """Measure how long the host takes to start a small kernel, without waiting for it."""
    number = torch.zeros((), device=device.torch)
    for _ in range(_NUM_LAUNCHES):
        number.add_(1)
    wait_for(device)
    start = time.perf_counter()
    for _ in range(_NUM_LAUNCHES):
        number.add_(1)
    host = (time.perf_counter() - start) / _NUM_LAUNCHES
    wait_for(device)
    both = (time.perf_counter() - start) / _NUM_LAUNCHES
    yield Row(
        "a kernel of one number",
        f"{host * 1e6:.2f} µs on the host, {both * 1e6:.2f} µs with the device",
        numbers={"host_seconds": host, "seconds": both},
    )
    yield Check("every kernel ran", f"{float(number):.0f}", f"{2 * _NUM_LAUNCHES}", float(number) == 2 * _NUM_LAUNCHES)
