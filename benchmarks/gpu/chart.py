"""The chart of the report: the seconds of a step and its share of the device's speed, as bars."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from benchmarks.gpu.results import Report
from modules.system.atomic import write_bytes

STEP_SECONDS, SHARE = "step_seconds", "share_of_matrix_speed"
"""The numbers of a row that becomes a bar of the chart."""

_WIDTH, _LEFT, _RIGHT, _TOP, _HEIGHT = 1100, 380, 40, 64, 26
_BACK, _INK, _MUTED = "#ffffff", "#1f1f22", "#66666f"
_SECONDS, _SHARE = "#b1610f", "#3a6ea5"


@dataclass(frozen=True, slots=True)
class Bar:
    """A measured step: its name, its seconds, and its speed as a share of the speed of a large matrix product."""

    name: str
    seconds: float
    share: float


def bars_of(report: Report) -> list[Bar]:
    """Return the bars of all rows that measure a step."""
    return [
        Bar(f"{case.name}: {row.name}", float(row.numbers[STEP_SECONDS]), float(row.numbers[SHARE]))
        for stage in report.in_order
        for case in stage.cases.values()
        for row in case.rows
        if {STEP_SECONDS, SHARE} <= row.numbers.keys()
    ]


def write_chart(file: Path, title: str, bars: Sequence[Bar]) -> None:
    """Write the bars as a PNG: for each step its seconds, and below them its share of the device's speed."""
    image = Image.new("RGB", (_WIDTH, _TOP + len(bars) * 2 * _HEIGHT + 24), _BACK)
    draw = ImageDraw.Draw(image)
    heading, text = ImageFont.load_default(17), ImageFont.load_default(12)
    draw.text((16, 14), title, _INK, heading)
    draw.text((16, 40), "seconds a step", _SECONDS, text)
    draw.text((130, 40), "share of the speed of a large matrix product", _SHARE, text)
    longest = max((bar.seconds for bar in bars), default=1.0) or 1.0
    for index, bar in enumerate(bars):
        top, room = _TOP + index * 2 * _HEIGHT, _WIDTH - _LEFT - _RIGHT - 60
        draw.text((_LEFT - 10, top + _HEIGHT), _fit_name(bar.name, text), _INK, text, anchor="rm")
        for offset, share, colour, words in (
            (0, bar.seconds / longest, _SECONDS, f"{bar.seconds:.3g} s"),
            (_HEIGHT - 6, bar.share, _SHARE, f"{bar.share:.0%}"),
        ):
            right = _LEFT + max(1, round(min(1.0, share) * room))
            draw.rectangle((_LEFT, top + offset + 4, right, top + offset + _HEIGHT - 6), fill=colour)
            draw.text((right + 6, top + offset + _HEIGHT // 2), words, _MUTED, text, anchor="lm")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    write_bytes(file, buffer.getvalue())


def _fit_name(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Return a name, shortened at its end to fit next to the bars."""
    while font.getlength(name) > _LEFT - 30:
        name = name[:-2].rstrip(".… ") + "…"
    return name
