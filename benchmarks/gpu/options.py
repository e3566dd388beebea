"""Stage 5: the options and ways that change the speed of a step, and every preset in the memory of its card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks.gpu import presets, ways
from benchmarks.gpu.full_size import measured_step
from benchmarks.gpu.models import small_run, subjects, training_config
from benchmarks.gpu.stage import Case, Finding, Request
from benchmarks.loop_variants import Changes, single_changes, with_changes

_CASE = {"trains": "adapter", "batch_size": 1, "denoiser": {"checkpointing": "off"}}
_NUM_TINY = 2  # on a CPU all of them are tested elsewhere


def cases(request: Request) -> Sequence[Case]:
    """Return a case for the defaults, for each option, for each way to compute a step, and for each preset."""
    options: dict[str, Changes] = {"defaults": {}}
    options |= single_changes(small_run(request, precision="bfloat16"))
    names = list(options)[: _NUM_TINY if request.is_tiny else None]
    return (
        *(Case(f"option: {name}", partial(_with_option, request, options[name])) for name in names),
        *ways.cases(request),
        *presets.cases(request),
    )


def _with_option(request: Request, change: Changes, seconds: float) -> Iterator[Finding]:
    subject, *_ = subjects(request)
    config = with_changes(training_config(request, subject, _CASE), change)
    yield from measured_step(request, f"{subject.label}, {subject.side_px} px", config, seconds)
