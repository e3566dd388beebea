"""An image of profiled steps, drawn from torch's Chrome trace: what each thread of the host does when, what a GPU does
and where it waits, and below the operations with the most time. Torch-free.
"""

from __future__ import annotations

import io
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from modules.system.atomic import write_bytes
from modules.system.problem import count
from trainer.step.step_profile import BETWEEN, DEVICE_EVENTS, HOST_EVENTS, DeviceTime, device_time

_SHOWN_STEPS = 2
_DEPTHS = 4  # operations inside operations
_MAX_THREADS = 3
_MIN_SHARE = 0.02  # of the time: threads with less are not shown
_NUM_BARS = 10
_STEP = "ProfilerStep"
_BACKWARD = "autograd::engine::evaluate_function: "

_WIDTH, _LEFT, _RIGHT, _TOP = 1600, 120, 24, 70
_ROW, _LANE_GAP, _BAR = 20, 14, 22
_LEAST_NAMED = 40  # pixels
_BACK, _INK, _MUTED, _GRID, _OTHER, _WAIT = "#ffffff", "#1f1f22", "#66666f", "#dcdce2", "#c9c9d1", "#c8372d"
_COLOURS = (
    "#3a6ea5", "#b1610f", "#4f8a4c", "#8a5aa8", "#c29b2c", "#2f8f8f", "#a8506b", "#6b7a2e", "#5560b8", "#9a6b4a",
)  # fmt: skip
Draw = ImageDraw.ImageDraw


@dataclass(frozen=True, slots=True)
class Span:
    """An operation: its seconds from the start of the image, its name, and how many others it is inside of."""

    start: float
    end: float
    name: str
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Lane:
    """The operations of a thread or of the device."""

    label: str
    spans: Sequence[Span]

    @property
    def num_rows(self) -> int:
        """The rows that are drawn of it."""
        return min(_DEPTHS, max((s.depth + 1 for s in self.spans), default=1))


@dataclass(frozen=True, slots=True)
class Timeline:
    """Some steps of a profile: their length, where steps begin, the lanes, and the seconds by name.

    `host` has the outermost operations of all threads and the time in which no thread had one, `own` all operations by
    the time that they spent in themselves.
    """

    seconds: float
    step_starts: Sequence[float]
    threads: Sequence[Lane]
    device: Lane | None
    host: Sequence[tuple[str, float]]
    own: Sequence[tuple[str, float]]
    waits: DeviceTime


def timeline_of(events: Iterable[Mapping[str, Any]]) -> Timeline | None:
    """Return the timeline of the two steps in the middle of a Chrome trace; None for one without operations."""
    complete = [e for e in events if e.get("ph") == "X"]
    host = [e for e in complete if e.get("cat") in HOST_EVENTS and not e["name"].startswith(_STEP)]
    if not host:
        return None
    steps = sorted(
        (_start(e), _end(e)) for e in complete if e["name"].startswith(_STEP) and e.get("cat") == "user_annotation"
    )
    middle = max(0, (len(steps) - _SHOWN_STEPS) // 2)
    shown = steps[middle : middle + _SHOWN_STEPS] or [(min(map(_start, host)), max(map(_end, host)))]
    first, last = shown[0][0], max(end for _, end in shown)
    inside = [e for e in complete if first <= _start(e) < last]
    main = next((e["tid"] for e in complete if e["name"].startswith(_STEP)), None)
    threads = _threads([e for e in host if first <= _start(e) < last], first, last, main=main)
    on_device = sorted((e for e in inside if e.get("cat") in DEVICE_EVENTS), key=_start)
    spans = [Span(_start(e) - first, min(_end(e), last) - first, e["name"]) for e in on_device]
    totals: dict[str, float] = defaultdict(float)
    own: dict[str, float] = defaultdict(float)
    for lane in threads:
        inside_of: list[str] = []
        for span in lane.spans:
            inside_of[span.depth :] = [span.name]
            own[span.name] += span.end - span.start
            if span.depth:
                own[inside_of[span.depth - 1]] -= span.end - span.start
            else:
                totals[span.name] += span.end - span.start
    totals[BETWEEN] = last - first - _covered([s for lane in threads for s in lane.spans])
    return Timeline(
        last - first,
        [start - first for start, _ in shown],
        [lane for lane in threads if _covered(lane.spans) >= _MIN_SHARE * (last - first)][:_MAX_THREADS],
        Lane("GPU", spans) if spans else None,
        _longest_first(totals),
        _longest_first(own),
        device_time(inside),
    )


def write_timeline(file: Path, timeline: Timeline, *, title: str) -> None:
    """Write a timeline as a PNG."""
    lanes = [*timeline.threads, *([timeline.device] if timeline.device is not None else [])]
    rows = sum(lane.num_rows * _ROW + _LANE_GAP for lane in lanes)
    image = Image.new("RGB", (_WIDTH, _TOP + rows + 70 + (_NUM_BARS + 1) * _BAR), _BACK)
    draw, heading = ImageDraw.Draw(image), ImageFont.load_default(17)
    per_step = timeline.seconds / len(timeline.step_starts)
    words = f"{title}: {count(len(timeline.step_starts), 'step')} of {per_step * 1000:.0f} ms"
    draw.text((_LEFT, 14), words, _INK, heading)
    colours = dict(zip((n for n, _ in timeline.host if n != BETWEEN), _COLOURS, strict=False))
    top = float(_TOP)
    _draw_scale(draw, timeline, bottom=_TOP + rows)
    for lane in lanes:
        _draw_lane(draw, lane, timeline, colours, top=top)
        top += lane.num_rows * _ROW + _LANE_GAP
    half = (_WIDTH - _LEFT) // 2
    _draw_bars(draw, "Host, outermost operations", timeline.host, timeline, colours, left=_LEFT, top=top + 14)
    left, bars = _LEFT + half, top + 14
    if timeline.device is not None:
        waits = [(w.name.removeprefix(_BACKWARD), w.seconds) for w in timeline.waits.waits]
        red = dict.fromkeys((name for name, _ in waits), _WAIT)
        _draw_bars(draw, "The GPU waited while the host did", waits, timeline, red, left=left, top=bars)
    else:
        _draw_bars(draw, "Host, operations by their own time", timeline.own, timeline, {}, left=left, top=bars)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    write_bytes(file, buffer.getvalue())


def _threads(host: Sequence[Mapping[str, Any]], first: float, last: float, *, main: Any) -> list[Lane]:
    """Return the lanes of the host's threads, first the main one, then those with the most time."""
    of_thread: dict[Any, list[Mapping[str, Any]]] = {}
    for event in host:
        of_thread.setdefault(event["tid"], []).append(event)
    lanes: dict[Any, Lane] = {}
    for thread, events in of_thread.items():
        is_backward = any(e["name"].startswith(_BACKWARD) for e in events)
        label = "host" if thread == main else "backward" if is_backward else "host, other"
        lanes[thread] = Lane(label, _nested(events, first, last))
    return [lanes[t] for t in sorted(lanes, key=lambda t: (t != main, -_covered(lanes[t].spans)))]


def _nested(events: Iterable[Mapping[str, Any]], first: float, last: float) -> list[Span]:
    """Return the operations of a thread with their depth."""
    found: list[Span] = []
    inside: list[float] = []  # the ends of the operations that the next one may be inside of
    for event in sorted(events, key=lambda e: (_start(e), -_end(e))):
        start, end = _start(event), min(_end(event), last)
        while inside and inside[-1] <= start:
            inside.pop()
        found.append(Span(start - first, end - first, event["name"].removeprefix(_BACKWARD), len(inside)))
        inside.append(end)
    return found


def _longest_first(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda row: -row[1])


def _covered(spans: Iterable[Span]) -> float:
    """Return the seconds in which at least one span is active."""
    covered = until = 0.0
    for span in sorted(spans, key=lambda s: s.start):
        covered += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return covered


def _start(event: Mapping[str, Any]) -> float:
    return float(event["ts"]) * 1e-6


def _end(event: Mapping[str, Any]) -> float:
    return (float(event["ts"]) + float(event["dur"])) * 1e-6


def _at(timeline: Timeline, seconds: float) -> float:
    return _LEFT + seconds / timeline.seconds * (_WIDTH - _LEFT - _RIGHT)


def _draw_scale(draw: Draw, timeline: Timeline, *, bottom: int) -> None:
    """Draw lines at round times, and thicker ones where steps begin."""
    text = ImageFont.load_default(12)
    unit = next(
        u for n in itertools.count(-6) for u in (10.0**n, 2 * 10.0**n, 5 * 10.0**n) if u > timeline.seconds / 12
    )
    for number in range(int(timeline.seconds / unit) + 1):
        x = _at(timeline, number * unit)
        draw.line((x, _TOP - 6, x, bottom), _GRID)
        draw.text((x, _TOP - 8), f"{number * unit * 1000:g} ms", _MUTED, text, anchor="mb")
    for start in timeline.step_starts:
        x = _at(timeline, start)
        draw.line((x, _TOP - 6, x, bottom), _INK, 2)


def _draw_lane(draw: Draw, lane: Lane, timeline: Timeline, colours: Mapping[str, str], *, top: float) -> None:
    text = ImageFont.load_default(12)
    draw.text((_LEFT - 10, top + _ROW / 2), lane.label, _INK, text, anchor="rm")
    if lane is timeline.device:  # what no operation covers is a wait
        draw.rectangle((_LEFT, top, _WIDTH - _RIGHT, top + _ROW - 3), _WAIT)
    outermost = ""
    for span in lane.spans:
        outermost = span.name if span.depth == 0 else outermost
        colour = _COLOURS[0] if lane is timeline.device else colours.get(outermost, _OTHER)
        left, right, y = _at(timeline, span.start), _at(timeline, span.end), top + span.depth * _ROW
        if span.depth >= _DEPTHS or (span.depth and right - left < 0.5):
            continue
        draw.rectangle((left, y, max(left, right - 1), y + _ROW - 3), _lighter(colour, span.depth))
        if right - left > _LEAST_NAMED:
            name = _cut(draw, span.name.removeprefix("aten::"), right - left - 6, text)
            draw.text((left + 3, y + _ROW / 2 - 2), name, _BACK if span.depth < 2 else _INK, text, anchor="lm")


def _draw_bars(
    draw: Draw,
    title: str,
    rows: Sequence[tuple[str, float]],
    timeline: Timeline,
    colours: Mapping[str, str],
    *,
    left: float,
    top: float,
) -> None:
    """Draw the names with the most time, with their time in a step and their share."""
    text = ImageFont.load_default(13)
    draw.text((left, top), title, _INK, ImageFont.load_default(15))
    width, names = 220, 330
    for index, (name, seconds) in enumerate(rows[:_NUM_BARS]):
        y = top + _BAR * (index + 1) + 6
        share = seconds / timeline.seconds
        draw.text((left, y + _BAR / 2 - 3), _cut(draw, name, names - 10, text), _INK, text, anchor="lm")
        draw.rectangle((left + names, y, left + names + max(1, share * width), y + _BAR - 7), colours.get(name, _OTHER))
        words = f"{seconds / len(timeline.step_starts) * 1000:.1f} ms, {share:.0%}"
        draw.text((left + names + share * width + 8, y + _BAR / 2 - 3), words, _MUTED, text, anchor="lm")


def _cut(draw: Draw, name: str, width: float, font: Any) -> str:
    """Return a name as far as it fits."""
    if draw.textlength(name, font) <= width:
        return name
    while name and draw.textlength(f"{name}…", font) > width:
        name = name[:-1]
    return f"{name}…"


def _lighter(colour: str, depth: int) -> str:
    """Return a colour mixed with white, the more the deeper an operation is."""
    share = (0.0, 0.25, 0.55, 0.75)[min(depth, 3)]
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(p + (255 - p) * share):02x}" for p in parts)
