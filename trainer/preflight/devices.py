"""The devices of a run and the dtypes they support; checked without torch, so only certain problems are reported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.config.sections.training import SIXTEEN_BITS
from modules.quantization.registry import FORMATS, PLAIN_COST, PRODUCT_CAPABILITY, QuantizedFormat
from modules.system import hardware
from modules.system.problem import Problem, count, quote
from trainer.launch import first_device
from trainer.wording import MIXED_16_BIT

_NAME = re.compile(r"(cpu|cuda|mps)(?::(\d{1,3}))?|auto|", re.ASCII)
_INTEL = re.compile(r"xpu(?::\d{1,3})?", re.ASCII)
_AMPERE = 8.0  # the first GPUs that compute in bfloat16 and TF32


def problems_of_devices(config: Config) -> Iterator[Problem]:
    """Yield invalid or missing devices, and dtypes that they support poorly or not at all."""
    kind = ""
    for path, name in (
        ("general.train_device", config.general.train_device),
        ("general.temp_device", config.general.temp_device),
    ):
        problems = list(_device(path, name))
        remedy = "device" if path == "general.train_device" else ""
        yield from (replace(problem, remedy=remedy) for problem in problems)
        if path == "general.train_device" and not problems:
            kind = hardware.here().kind_of(name)
            yield from _unknown_gpus(name)
    yield from _precision(config, kind)
    yield from _mixed_16_bit(config, kind)
    yield from _problems_of_quantized(config, kind)


def _device(path: str, name: str) -> Iterator[Problem]:
    match = _NAME.fullmatch(name.strip().lower())
    if match is None and _INTEL.fullmatch(name.strip().lower()):
        yield Problem(path, f"{name}: Intel GPUs are not supported.", advice="Set it to auto: the run uses the CPU.")
        return
    if match is None:
        yield Problem(path, f"{quote(name)} is not a valid device.", advice="Use auto, cpu, cuda, cuda:1 or mps.")
        return
    here, index = hardware.here(), int(match[2] or 0)
    if match[1] == "cuda" and here.lacks_cuda:
        why, missing = "the installed torch is the CPU-only build", "torch build"
        if here.is_mac:
            why = "a Mac has no NVIDIA GPU"
        elif here.has_no_driver:
            why, missing = "no NVIDIA driver is loaded", "driver"
        yield Problem(
            path, f"{name} cannot be used: {why}.", advice=f"Set it to auto, or install the {missing} for your GPU."
        )
    elif match[1] == "cuda" and here.capabilities is not None and index >= len(here.capabilities):
        num_gpus = len(here.capabilities)
        message = f"{name} does not exist: this machine has {count(num_gpus, here.gpu_name)}"
        yield Problem(path, message + (", starting at cuda:0." if num_gpus else "."), advice="Set it to auto.")
    elif match[1] == "mps" and not here.is_mac:
        yield Problem(path, f"{name} is only available on a Mac.", advice="Set it to auto.")


def _unknown_gpus(name: str) -> Iterator[Problem]:
    """Yield a warning if a run would use a GPU that no tool can describe, although there should be one."""
    why = hardware.here().why_unknown
    if why and name.strip().lower().partition(":")[0] in ("", "auto", "cuda"):
        yield Problem(
            "general.train_device",
            f"Nothing is known about the GPUs of this machine: {why}. Whether the run fits its GPU is not checked.",
            "warning",
            "Run nvidia-smi in a terminal (AMD: rocm-smi), update the driver if it fails, and restart the program.",
        )


def _problems_of_quantized(config: Config, kind: str) -> Iterator[Problem]:
    """Yield an error for each quantized format that the training device lacks, and notes on the denoiser's cost."""
    for name, chosen in quantized_parts(config).formats.items():
        if kind and kind not in chosen.format.devices:
            others = [f.label for f in FORMATS.values() if kind in f.devices]
            yield Problem(
                f"parts.{name}.dtype",
                f"The training device ({kind}) does not support {chosen.format.label}.",
                advice=f"Choose {', '.join((*others, 'bfloat16'))} or float16.",
            )
        elif kind == "cuda" and name == config.family.denoiser.name:
            yield from _speed_of(chosen.format, f"parts.{name}.dtype", config)


def _speed_of(form: QuantizedFormat, path: str, config: Config) -> Iterator[Problem]:
    """Yield a note about the cost of a quantized denoiser on a GPU, or a GPU that cannot compute products in 8 bits."""
    part = config.family.denoiser.label
    capability = hardware.here().capability_of(first_device(config))
    needed = PRODUCT_CAPABILITY[form.rounds_inputs] if form.rounds_inputs else 0
    if 0 < capability < needed:
        yield Problem(
            path,
            f"The GPU (compute capability {capability:g}) has no products in {form.rounds_inputs} ({needed:g} is "
            f"needed): inputs of {part} are rounded, but computed in 16 bits, which is slower than in bfloat16.",
            "warning",
            f"Choose {form.rounds_inputs} without computing in it: inputs keep their precision.",
        )
    elif form.cost is not None:
        yield Problem(
            path,
            f"{part} in {form.label} has {form.bytes_per_weight:.2f} bytes for each weight, bfloat16 2. For each layer "
            f"a step has {form.cost.kernels} kernels, {PLAIN_COST.kernels} in bfloat16, and moves {form.cost.moved_mb} "
            "MB besides the products (counted with 1024 tokens and 1280 x 1280 weights), so "
            + ("small layers are slower; products of large ones are faster." if needed else "steps are slower."),
            "info",
            "Choose bfloat16 if the model fits the GPU in it.",
        )
    else:
        yield Problem(
            path,
            f"{part} keeps the blocks of its file, which a GPU unpacks at each use, with 8 kernels a layer and step "
            "(Q8_0) to 46 (Q4_K), so steps are slower than in bfloat16.",
            "info",
            "Choose GGUF computed in 8 bits if the GPU has room for a byte of each weight: then nothing is unpacked.",
        )


def _precision(config: Config, kind: str) -> Iterator[Problem]:
    precision = config.training.precision
    if kind == "cpu" and precision == "float16":
        yield Problem(
            "training.precision",
            "float16 on a CPU is slow, and less precise than float32.",
            "warning",
            "Use float32, or bfloat16 on a recent CPU.",
        )
    elif kind == "cpu" and precision == "tfloat32":
        yield Problem(
            "training.precision",
            "The CPU does not support TF32: the run computes in float32.",
            "info",
            "Use float32.",
        )
    elif kind == "cuda" and 0 < (capability := hardware.here().capability_of(first_device(config))) < _AMPERE:
        yield from _old_gpu(config, capability)


def _mixed_16_bit(config: Config, kind: str) -> Iterator[Problem]:
    """Yield an error for each part that autocast on a CPU cannot compute in the other 16-bit dtype than its own."""
    precision = config.training.precision
    if kind != "cpu" or precision not in SIXTEEN_BITS or config.training.trains == "vae":
        return
    message, advice = MIXED_16_BIT
    for part in config.family.parts:
        dtype = config.part(part.name).dtype
        if part.model.joins_weights and dtype in SIXTEEN_BITS and dtype != precision:
            yield Problem(f"parts.{part.name}.dtype", message, advice=advice)


def _old_gpu(config: Config, capability: float) -> Iterator[Problem]:
    gpu = f"The GPU (compute capability {capability:g})"
    if config.training.precision == "tfloat32":
        message = f"{gpu} does not support TF32: it computes in float32."
        yield Problem("training.precision", message, "info", "Use float16.")
    if config.training.precision == "bfloat16":
        yield Problem(
            "training.precision",
            f"{gpu} does not support bfloat16: it is emulated, which is slow.",
            "warning",
            "Use float16.",
        )
    for part in config.family.parts:
        if config.part(part.name).dtype == "bfloat16" and config.training.precision != "bfloat16":
            yield Problem(
                f"parts.{part.name}.dtype",
                f"{gpu} does not support bfloat16, the weight dtype of {part.label}: it is emulated, which is slow.",
                "warning",
                "Use float16 for parts that are not trained, float32 for those that are.",
            )
