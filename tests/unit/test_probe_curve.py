"""The range test of learning rates: its sweep, its suggestion, and the plot."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.optim.schedules.expression import evaluate
from trainer.probe.curve import RatePoint, evaluate_sweep, has_diverged, sweep_expression, swept_rate
from trainer.probe.plot import Plot, write_plot

LOWEST, HIGHEST, STEPS = 1e-6, 1e-1, 60


def points(steepest: float, *, diverges: float = 1.0, noise: float = 0.0) -> list[RatePoint]:
    """A sweep whose loss falls around one rate, and rises behind another, under the loss of changing timesteps."""
    rng = np.random.default_rng(3)
    found = []
    for i in range(STEPS):
        rate = swept_rate(i, STEPS, LOWEST, HIGHEST)
        change = -0.1 / (1 + math.exp(-6 * math.log10(rate / steepest))) + noise * rng.standard_normal()
        untrained = 0.1 + 0.8 * rng.random()  # differs far more from step to step than training changes
        found.append(RatePoint(rate, untrained + change + (rate > diverges) * 10 * rate, untrained))
    return found


def test_the_sweep_grows_by_a_factor_and_its_formula_says_the_same() -> None:
    text = sweep_expression(STEPS, LOWEST, HIGHEST)
    for step in (0, 1, 30, STEPS - 1):
        values = {"step": step, "total_steps": 99.0}
        assert HIGHEST * evaluate(text, values) == pytest.approx(swept_rate(step, STEPS, LOWEST, HIGHEST), rel=1e-6)
    assert swept_rate(0, STEPS, LOWEST, HIGHEST) == LOWEST
    assert swept_rate(STEPS - 1, STEPS, LOWEST, HIGHEST) == pytest.approx(HIGHEST)


@pytest.mark.parametrize("steepest", [1e-4, 1e-3])
def test_the_suggestion_is_where_the_loss_falls_most_steeply(steepest: float) -> None:
    found = evaluate_sweep(points(steepest, diverges=2e-2, noise=0.002))
    assert found.suggested is not None
    assert steepest / 3 < found.suggested < steepest * 3
    assert found.diverges_at is not None
    assert 1e-2 < found.diverges_at < 0.1
    assert "falls most steeply" in str(found)
    assert "diverges from about" in str(found)


def test_without_a_fall_nothing_is_suggested() -> None:
    flat = [RatePoint(swept_rate(i, STEPS, LOWEST, HIGHEST), 0.5, 0.5) for i in range(STEPS)]
    assert evaluate_sweep(flat).suggested is None
    noisy = evaluate_sweep(points(10.0, noise=0.05))
    assert noisy.suggested is None
    assert "no learning rate stands out" in str(noisy)
    assert "stable up to" in str(noisy)


def test_a_loss_that_is_not_finite_ends_the_sweep() -> None:
    sweep = points(1e-4)
    broken = [*sweep[:40], RatePoint(sweep[40].rate, float("nan"), 0.5), *sweep[41:]]
    found = evaluate_sweep(broken)
    assert len(found.points) == 40
    assert found.diverges_at == sweep[40].rate
    assert evaluate_sweep(broken[38:]).suggested is None
    assert has_diverged(float("nan"), 1.0)
    assert has_diverged(9.0, 1.0)
    assert not has_diverged(2.0, 1.0)


@pytest.mark.parametrize("is_log", [True, False])
def test_a_plot_is_a_png_with_its_line_and_mark(tmp_path: Path, is_log: bool) -> None:
    found = evaluate_sweep(points(1e-3))
    rates, changes = [p.rate for p in found.points], [p.change for p in found.points]
    file = tmp_path / "plot.png"
    write_plot(file, Plot("Title", "x", "y", rates, [*changes[:-1], math.nan], found.smoothed, 1e-3, "here", is_log))
    with Image.open(file) as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or []}
        assert image.size == (900, 460)
    assert {(0xB1, 0x61, 0x0F), (0x3A, 0x6E, 0xA5), (0xE0, 0xC0, 0x9B)} <= colours
