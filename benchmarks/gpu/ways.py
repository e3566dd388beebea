"""Stage 5, the ways to compute a step: each is compared to the same run without it, with its losses.

A CPU has no graphs, no segments and no measured compiling. There the tests' substitute records graphs, and the report
lists the others as not on this device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from unittest import mock

import torch

from benchmarks import loop_speed
from benchmarks.gpu import trained_steps as steps_module
from benchmarks.gpu.models import device_of, offload_name, small_run, subjects, training_config
from benchmarks.gpu.stage import Case, Check, Finding, Request
from benchmarks.gpu.trained_steps import TrainedSteps, compare_steps, compare_weights, train_steps
from benchmarks.rows import Row
from modules.adapters.lora_layers import LoraAdapter
from modules.config.schema import Config
from modules.memory import offload
from modules.memory.offload import LayerOffload
from modules.settings.edit import replace_value
from trainer.preflight.graphs import why_not_recorded
from trainer.run import model as run_model
from trainer.run import stepper
from trainer.run.automatic_choices import measures_compiled_blocks
from trainer.run.machine import name_of

_EPOCHS, _TINY_EPOCHS = 3, 1
_EPOCHS_UNTIL_CHOSEN = 12
_ROUNDED = 0.02  # relative difference of losses in bfloat16 that are rounded at other places
_EXACT_RATE = 2.0**-8  # also exact in float32, as which a recorded optimizer reads it
_ABSENT = "not on this device"

Way = AbstractContextManager[object]


def cases(request: Request) -> Sequence[Case]:
    """Return a case for each way to compute a step."""
    return (
        Case("CUDA graphs", partial(_graphs, request)),
        Case("fused LoRA", partial(_without, request, _plain_lora)),
        Case("bfloat16 without autocast", partial(_without, request, _under_autocast)),
        Case("layers fetched ahead by their bytes", partial(_fetching, request)),
        Case("convolutions timed by cuDNN", partial(_timing, request)),
        Case("compiling by measurement", partial(_compiling, request)),
        Case("expandable segments", partial(_segments, request)),
    )


def _graphs(request: Request, _seconds: float) -> Iterator[Finding]:
    """Compare recorded steps with others: for bit-equality in a small deterministic run, for time in a large one."""
    device, passed = device_of(request), []
    for mode in ("off", "block"):
        small, large = _small(request, mode), _lora(request, mode)
        for size, config, allowed in (("small, deterministic", small, 0.0), ("large", large, _ROUNDED)):
            for finding in _compare_recorded(request, f"{size}, checkpointing {mode}", config, allowed):
                passed += [finding.passed] if isinstance(finding, Check) else []
                yield finding
    if device.type != "cuda":
        yield Row(_ABSENT, "only GPUs have graphs: recorded by the tests' substitute")
    elif all(passed):
        yield Row("passed: the line for trainer/preflight/graphs.py", f'PASSED_ON = ("{name_of(device)}",)')


def _small(request: Request, checkpointing: str) -> Config:
    """Return a deterministic LoRA run of the demo model in bfloat16 that graphs can record."""
    config = small_run(request, folder="graphs", precision="bfloat16")
    changes = {
        "general.deterministic": True,
        "parts.unet.dtype": "bfloat16",
        "parts.unet.checkpointing": checkpointing,
        "parts.text_encoder.train": False,
        "adapter.dropout": 0.0,
        "training.learning_rate": _EXACT_RATE,
    }
    for path, value in changes.items():
        config = replace_value(config, path, value)
    return config


def _compare_recorded(request: Request, name: str, config: Config, allowed: float) -> Iterator[Finding]:
    is_gpu = device_of(request).type == "cuda"
    if is_gpu and (why := why_not_recorded(_on(config), "cuda", 1)):
        yield Check(f"recorded: {name}", f"no, because {why}", "yes", False)
        return
    plain = _steps(request, replace_value(config, "training.cuda_graphs", "off"))
    recorded = _steps(request, _on(config), None if is_gpu else _double())
    yield from compare_steps(name, recorded, plain, allowed=allowed)
    got = recorded.graphs_failure or f"{recorded.num_graphs} graphs"
    yield Check(f"recorded: {name}", got, "1 graphs or more", recorded.num_graphs > 0 and not recorded.graphs_failure)
    got = f"{recorded.num_updates} times"
    yield Check(f"optimizer recorded: {name}", got, "once or more", recorded.num_updates > 0)
    if not allowed:
        yield compare_weights(name, recorded, plain)


def _on(config: Config) -> Config:
    return replace_value(config, "training.cuda_graphs", "on")


@contextmanager
def _double() -> Iterator[None]:
    """Record steps on a CPU."""
    from tests.builders.recorded_operations import RecordedOperations  # the tests are next to the benchmarks

    with (
        mock.patch.object(stepper, "records_steps", return_value=True),
        mock.patch.object(stepper, "recorder_of", return_value=RecordedOperations()),
    ):
        yield


def _without(request: Request, way: Callable[[], Way], _seconds: float) -> Iterator[Finding]:
    """Compare the steps of a LoRA in bfloat16 with the same steps within `way()`, which undoes an optimization."""
    config = _lora(request, "off")
    yield from compare_steps(_label(request), _steps(request, config), _steps(request, config, way()), allowed=_ROUNDED)


def _plain_lora() -> Way:
    """Compute LoRAs as peft does."""
    return mock.patch.object(LoraAdapter, "compute_in_input_dtype")


def _under_autocast() -> Way:
    stack = ExitStack()
    for module in (run_model, loop_speed):
        stack.enter_context(mock.patch.object(module, "needs_autocast", return_value=True))
    return stack


def _fetching(request: Request, _seconds: float) -> Iterator[Finding]:
    """Compare fetching layers ahead, as many as fit into the bytes of the second largest, with fetching one."""
    config = _lora(request, "block")
    for path, value in {
        f"parts.{config.family.denoiser.name}.offload_fraction": 0.5,
        "general.temp_device": offload_name(device_of(request)),
    }.items():
        config = replace_value(config, path, value)
    one_ahead = mock.patch.object(offload, "LayerOffload", _OneAhead)
    yield from compare_steps(
        _label(request), _steps(request, config), _steps(request, config, one_ahead), allowed=_ROUNDED
    )


class _OneAhead(LayerOffload):
    """Fetches one layer ahead, whatever its size."""

    most_ahead_bytes = property(lambda self: 0, lambda self, value: None)


def _timing(request: Request, _seconds: float) -> Iterator[Finding]:
    """Compare steps whose kernels cuDNN has timed with steps whose kernels it has chosen by its rules."""
    if device_of(request).type != "cuda" or torch.version.hip is not None:
        yield Row(_ABSENT, "only cuDNN times kernels")
        return
    by_rules = mock.patch.object(steps_module, "timed_kernels", return_value=nullcontext())
    yield from _without(request, lambda: by_rules, _seconds)


def _compiling(request: Request, _seconds: float) -> Iterator[Finding]:
    """Train until the run has chosen whether its blocks are compiled."""
    device, config = device_of(request), replace_value(_lora(request, "off"), "model.compile", "auto")
    if not measures_compiled_blocks(config, device, 1):
        yield Row(_ABSENT, "blocks are compiled by measurement on a GPU with Triton alone")
        return
    trained = train_steps(config, device, num_epochs=_EPOCHS_UNTIL_CHOSEN, until_chosen="model.compile")
    words = trained.chosen.get("model.compile", "")
    yield Row(_label(request), words or f"no choice in {len(trained.losses)} steps")
    yield Check("the run has chosen", "chosen" if words else "not chosen", "chosen", bool(words))


def _segments(request: Request, _seconds: float) -> Iterator[Finding]:
    """Compare the memory that the allocator reserves with expandable segments and with fixed ones."""
    device = device_of(request)
    set_allocator = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # as PYTORCH_ALLOC_CONF is read
    if device.type != "cuda" or set_allocator is None:
        yield Row(_ABSENT, "only the allocator of an NVIDIA GPU has segments that grow")
        return
    config = _lora(request, "off")
    by_segments = {}
    for is_on in (True, False):
        torch.cuda.empty_cache()
        set_allocator(f"expandable_segments:{is_on}")
        by_segments[is_on] = _steps(request, config)
    set_allocator("expandable_segments:True")
    yield from compare_steps(_label(request), by_segments[True], by_segments[False], allowed=_ROUNDED)


def _steps(request: Request, config: Config, way: Way | None = None) -> TrainedSteps:
    epochs = _TINY_EPOCHS if request.is_tiny else _EPOCHS
    return train_steps(config, device_of(request), num_epochs=epochs, way=way)


def _lora(request: Request, checkpointing: str) -> Config:
    subject, *_ = subjects(request)
    case = {"trains": "adapter", "batch_size": 1, "denoiser": {"checkpointing": checkpointing}}
    return training_config(request, subject, case)


def _label(request: Request) -> str:
    subject, *_ = subjects(request)
    return f"{subject.label}, {subject.side_px} px"
