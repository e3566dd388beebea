"""Stage 7: every format of quantized weights under a LoRA at full size, compared to bfloat16."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks.gpu.full_size import measured_step
from benchmarks.gpu.models import device_of, subjects, training_config
from benchmarks.gpu.stage import Case, Finding, Request
from benchmarks.quantized_bases import CASES, in_format
from benchmarks.quantized_bases import Case as Format
from modules.quantization.registry import FORMATS

_CASE = {"trains": "adapter", "batch_size": 1, "denoiser": {"checkpointing": "block"}}


def cases(request: Request) -> Sequence[Case]:
    """Return a case for bfloat16, and for each format without a residual that the device computes with."""
    kind = device_of(request).type
    formats = [f for f in CASES if not f.has_residual and kind in FORMATS[f.dtype].devices]
    return (
        Case("bfloat16", partial(_step, request, None)),
        *(Case(form.label, partial(_step, request, form)) for form in formats),
    )


def _step(request: Request, form: Format | None, seconds: float) -> Iterator[Finding]:
    subject, *_ = subjects(request)
    config = training_config(request, subject, _CASE)
    if form is not None:
        config = in_format(form, config, request.folder / f"gguf-{subject.model}")
    yield from measured_step(request, f"{subject.label}, {subject.side_px} px", config, seconds)
