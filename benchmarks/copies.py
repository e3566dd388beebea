"""The bytes that a training step copies between a GPU and the computer's memory, and the share that computing hides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TO, _FROM = "HtoD", "DtoH"  # in the names of torch's Chrome traces: "Memcpy HtoD (Pinned -> Device)"

Span = tuple[float, float]
"""The start and the end of an operation, in microseconds."""


@dataclass(frozen=True, slots=True)
class Copies:
    """The bytes of the copies to a device and from it, and the share of their time in which a kernel ran.

    `most_hidden` is the largest share possible: less than 1 where the copies take longer than all kernels.
    """

    to_device_bytes: int = 0
    from_device_bytes: int = 0
    hidden_share: float = 1.0
    most_hidden: float = 1.0


def copies_of(events: Iterable[Mapping[str, Any]]) -> Copies:
    """Return the copies in the events of a Chrome trace of torch's profiler."""
    complete = [event for event in events if event.get("ph") == "X"]
    kernels = _join_spans(_span(event) for event in complete if event.get("cat") == "kernel")
    copies = [event for event in complete if event.get("cat") == "gpu_memcpy"]
    between = [event for event in copies if _TO in event["name"] or _FROM in event["name"]]
    spans = [_span(event) for event in between]
    seconds = sum(end - start for start, end in spans)
    hidden = sum(_overlap(span, kernels) for span in spans)
    computing = sum(end - start for start, end in kernels)
    return Copies(
        sum(_bytes(event) for event in between if _TO in event["name"]),
        sum(_bytes(event) for event in between if _FROM in event["name"]),
        hidden / seconds if seconds else 1.0,
        min(1.0, computing / seconds) if seconds else 1.0,
    )


def _bytes(event: Mapping[str, Any]) -> int:
    return int(event.get("args", {}).get("bytes", 0))


def _span(event: Mapping[str, Any]) -> Span:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def _join_spans(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order, those that overlap as one."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _overlap(span: Span, others: Sequence[Span]) -> float:
    start, end = span
    return sum(max(0.0, min(end, last) - max(start, first)) for first, last in others)
