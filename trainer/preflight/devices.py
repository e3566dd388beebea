"""The devices a run asks for, and the number formats they can do; found without torch, and so only what is certain."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from modules.config.problem import Problem, shown
from modules.config.schema import Config
from modules.families.registry import FAMILIES

_NAME = re.compile(r"(cpu|cuda|mps)(?::(\d{1,3}))?|auto|", re.ASCII)
_QUERY = ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
_QUERY_SECONDS = 3.0
_AMPERE = 8.0  # the first GPUs that compute in bfloat16 and TF32


@dataclass(frozen=True, slots=True)
class Hardware:
    """What is known of this machine. `capabilities` are the compute capabilities of its NVIDIA GPUs, in their order;
    None where the driver's tool is missing or does not answer, which proves nothing.
    """

    torch_build: str
    is_mac: bool
    capabilities: tuple[float, ...] | None

    @property
    def lacks_cuda(self) -> bool:
        """Whether it is certain that no run can use a GPU as "cuda"."""
        return self.is_mac or self.torch_build == "cpu"


@functools.cache
def hardware() -> Hardware:
    """Return what is known of this machine; asked once per process."""
    build = _torch_build()
    is_mac = sys.platform == "darwin"
    can_have_nvidia = not is_mac and build != "cpu" and not build.startswith("rocm")
    return Hardware(build, is_mac, _capabilities() if can_have_nvidia else None)


def problems_of_devices(config: Config) -> Iterator[Problem]:
    """Yield devices that are none or not here, and number formats that they do badly or not at all."""
    kind = ""
    for path, name in (
        ("general.train_device", config.general.train_device),
        ("general.temp_device", config.general.temp_device),
    ):
        found = list(_device(path, name))
        yield from found
        if path == "general.train_device" and not found:
            kind = _kind(name)
    yield from _precision(config, kind)


def _device(path: str, name: str) -> Iterator[Problem]:
    match = _NAME.fullmatch(name.strip().lower())
    if match is None:
        yield Problem(path, f"{shown(name)} is no device.", advice="Use auto, cpu, cuda, cuda:1 or mps.")
        return
    here, index = hardware(), int(match[2] or 0)
    if match[1] == "cuda" and here.lacks_cuda:
        why = "a Mac has none" if here.is_mac else "the installed torch is the build for processors alone"
        advice = "Set it to auto, or install the torch build for your GPU."
        yield Problem(path, f"{name} is a GPU that cannot be used: {why}.", advice=advice)
    elif match[1] == "cuda" and here.capabilities is not None and index >= len(here.capabilities):
        count = len(here.capabilities)
        message = f"{name} is not there: this machine has {count} NVIDIA GPU{'' if count == 1 else 's'}"
        yield Problem(path, message + (", counted from cuda:0." if count else "."), advice="Set it to auto.")
    elif match[1] == "mps" and not here.is_mac:
        yield Problem(path, f"{name} is the GPU of a Mac, which this machine is not.", advice="Set it to auto.")


def _kind(name: str) -> str:
    """Return the kind of device that a valid name means here, "auto" resolved; nothing where that is not certain."""
    here = hardware()
    named = name.strip().lower().partition(":")[0]
    if named not in ("", "auto"):
        return named
    if here.is_mac:
        return ""
    if here.lacks_cuda:
        return "cpu"
    return "cuda" if here.capabilities else ""


def _precision(config: Config, kind: str) -> Iterator[Problem]:
    precision = config.training.precision
    if kind == "cpu" and precision == "float16":
        yield Problem(
            "training.precision",
            "float16 on the processor is slow, and less exact than float32.",
            "warning",
            "Use float32, or bfloat16 on a recent processor.",
        )
    elif kind == "cpu" and precision == "tfloat32":
        yield Problem(
            "training.precision", "The processor knows no TF32: the run computes in float32.", "info", "Use float32."
        )
    elif kind == "cuda" and 0 < (capability := _capability(config.general.train_device)) < _AMPERE:
        yield from _old_gpu(config, capability)


def _old_gpu(config: Config, capability: float) -> Iterator[Problem]:
    gpu = f"The GPU (compute capability {capability:g})"
    if config.training.precision == "tfloat32":
        yield Problem("training.precision", f"{gpu} knows no TF32: it computes in float32.", "info", "Use float16.")
    if config.training.precision == "bfloat16":
        yield Problem(
            "training.precision",
            f"{gpu} does not compute in bfloat16: it is imitated, slowly.",
            "warning",
            "Use float16.",
        )
    for part in FAMILIES[config.model.family].parts:
        if config.part(part.name).dtype == "bfloat16" and config.training.precision != "bfloat16":
            yield Problem(
                f"parts.{part.name}.dtype",
                f"{gpu} does not compute in bfloat16, in which {part.label} is kept: it is imitated, slowly.",
                "warning",
                "Use float16 for parts that are not trained, float32 for those that are.",
            )


def _capability(name: str) -> float:
    """Return the compute capability of a GPU, 0 where it is not known."""
    capabilities = hardware().capabilities or ()
    index = int(name.partition(":")[2] or 0)
    return capabilities[index] if index < len(capabilities) else 0.0


def _torch_build() -> str:
    """Return what torch was built for where its version says so, as in "cpu" or "cu128"."""
    try:
        return importlib.metadata.version("torch").partition("+")[2]
    except importlib.metadata.PackageNotFoundError:
        return ""


def _capabilities() -> tuple[float, ...] | None:
    """Return the capabilities of the GPUs as CUDA counts them, 0 for each where the order is not certain."""
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_QUERY_SECONDS, check=True)
        found = tuple(float(line) for line in done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(found) if visible is None else min(len(found), len([v for v in visible.split(",") if v.strip()]))
    if len(set(found)) > 1 and (visible is not None or os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"):
        return (0.0,) * count  # CUDA puts the fastest first, the driver's tool goes by the place on the bus
    return found[:count]
