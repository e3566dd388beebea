"""The verdict on losses, on curves of real runs of the demo and on drawn ones.

`loss_curves.json` has the losses of each step and the validations (step, loss) of four runs of `#demo` on a CPU:
"learning" as it is; "flat" with a learning rate of 1e-9; "diverging" with one of 0.2; "overfitting" with 0.004 and rank
64 on each image once an epoch, of which the first 900 steps are kept.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modules.objectives.loss_verdict import read_losses

CURVES: dict[str, Any] = json.loads(Path(__file__).with_name("loss_curves.json").read_text(encoding="utf-8"))


def curve(name: str, *, until: int) -> tuple[NDArray[np.float64], list[tuple[int, float]]]:
    """Return the losses and validations of a recorded run as they were at a step."""
    losses = CURVES[name]["losses"][:until]
    points = np.column_stack((np.arange(1, len(losses) + 1), losses))
    return points, [(step, loss) for step, loss in CURVES[name]["validations"] if step <= until]


@pytest.mark.parametrize(
    ("name", "until", "finding", "since"),
    [
        ("learning", 40, "unknown", None),
        ("learning", 210, "learning", None),
        ("learning", 300, "flat", None),  # it fell until step 210
        ("learning", 420, "overfitting", 210),  # and so it does: the demo's best model is that of step 210
        ("flat", 420, "flat", None),
        ("diverging", 420, "diverging", 0),
        ("overfitting", 350, "learning", None),
        ("overfitting", 900, "flat", None),  # a rise of 4 %, and it wanders by as much: it is too early to say
    ],
)
def test_recorded_runs(name: str, until: int, finding: str, since: int | None) -> None:
    verdict = read_losses(*curve(name, until=until))
    assert (verdict.finding, verdict.since_step) == (finding, since)


def test_a_rise_that_may_be_wandering_is_stated_as_such() -> None:
    assert read_losses(*curve("overfitting", until=900)).sentence == (
        "Flat: the validation loss fell from 0.1256 to 0.0374 at step 350, and the last 3 are higher, now 0.0417, but "
        "by no more than they may wander."
    )


def test_without_validations_only_the_training_loss_decides() -> None:
    losses, _ = curve("learning", until=420)
    assert read_losses(losses).sentence.startswith("Learning: the typical training loss fell from 0.0435 to 0.0237.")
    assert read_losses(curve("flat", until=420)[0]).finding == "flat"


def drawn(mean_of: Any, *, steps: int, seed: int) -> NDArray[np.float64]:
    """Return losses that vary as those of a batch of one do, about a mean at each share of the run."""
    draw = random.Random(seed)
    return np.array([(n, mean_of(n / steps) * draw.lognormvariate(-0.5, 1)) for n in range(1, steps + 1)])


def test_the_noise_of_steps_is_not_taken_for_a_change() -> None:
    """A verdict that errs with chance: of fifty runs without any change none is called learning or diverging."""
    findings = [read_losses(drawn(lambda t: 0.1, steps=400, seed=seed)).finding for seed in range(50)]
    assert set(findings) == {"flat"}


def test_a_fall_that_may_be_chance_is_not_called_flat() -> None:
    """The loss of a newcomer's first 120 steps halved, and the window called it flat."""
    verdict = read_losses(drawn(lambda t: 0.1 - 0.06 * t, steps=150, seed=2))
    assert verdict.finding == "unknown"
    assert verdict.sentence.startswith("Probably learning: over 150 steps the typical training loss fell from 0.")
    slow = [read_losses(drawn(lambda t: 0.1 - 0.04 * t, steps=400, seed=seed)) for seed in (4, 6, 8, 11)]
    assert {v.sentence.partition(":")[0] for v in slow} == {"Probably learning"}, (
        "the first and last parts do not show it"
    )


def test_a_run_that_breaks_in_the_middle_diverges_since_then() -> None:
    verdict = read_losses(drawn(lambda t: 0.1 if t < 0.6 else 0.5, steps=800, seed=1))
    assert verdict.finding == "diverging"
    assert verdict.since_step is not None
    assert verdict.since_step <= 500
    assert "A lower learning rate may help." in verdict.sentence


@pytest.mark.parametrize(
    ("mean_of", "steps"),
    [
        (lambda t: 0.1 if t < 0.01 else 1.0, 1000),  # after ten steps, in the midst of the first part of the run
        (lambda t: 0.1 if t < 0.01 else 1 + 4 * math.exp(-50 * t), 1000),  # falling since, it was called learning
        (lambda t: 0.1 if t < 0.95 else 1.0, 1000),
        (lambda t: 0.1 if t < 0.6 else 0.5, 200),
        (lambda t: 0.1 * (t > 0.5), 200),  # from 0, as of images without a masked region
    ],
)
def test_a_run_that_breaks_early_late_or_among_few_steps_diverges(mean_of: Any, steps: int) -> None:
    assert read_losses(drawn(mean_of, steps=steps, seed=5)).finding == "diverging"


@pytest.mark.parametrize("rise", [0.0, 0.3])
def test_the_lowest_of_many_validations_is_not_taken_for_the_begin_of_overfitting(rise: float) -> None:
    """It is low by chance: nearly each run with thirty and more validations that had learned was called so."""
    findings: list[list[str]] = []
    for seed in range(20):
        draw = random.Random(seed)
        level = [(0.05 + 0.08 * math.exp(-n / 4)) * (1 + rise * max(0, n - 20) / 20) for n in range(40)]
        curve = [(10 * n, value * draw.lognormvariate(0, 0.01)) for n, value in enumerate(level)]
        findings.append([read_losses(np.empty((0, 2)), curve[: n + 1]).finding for n in range(40)])
    called = ["overfitting" in found for found in findings]
    assert sum(called) == 20 if rise else sum(called) <= 2
    assert {found[-1] for found in findings} <= ({"overfitting"} if rise else {"flat", "learning"})
    changes = [sum(one != other for one, other in itertools.pairwise(found)) for found in findings]
    assert sum(changes) / 20 < 5, "it changed at each validation"


def test_validations_that_only_scatter_are_no_overfitting() -> None:
    """The lowest of many is low by chance; before, each fifth run that changed nothing was called so at some step."""
    called = {True: 0, False: 0}
    for seed, has_learned in itertools.product(range(40), called):
        draw = random.Random(seed)
        levels = [max(0.03, 0.1 - 0.02 * n) * (1 + 0.03 * max(0, n - 8)) if has_learned else 0.1 for n in range(20)]
        curve = [(10 * n, level * draw.lognormvariate(0, 0.01)) for n, level in enumerate(levels)]
        verdicts = [read_losses(np.empty((0, 2)), curve[: n + 1]) for n in range(20)]
        called[has_learned] += any(verdict.finding == "overfitting" for verdict in verdicts)
    assert called == {True: 40, False: 0}


Draw = np.random.Generator


def walk(draw: Draw, number: int, step: float) -> NDArray[np.float64]:
    """Return a random walk without a trend: it is as likely to rise as to fall, and wanders the farther, the longer."""
    return step * draw.standard_normal(number).cumsum()


def wander(draw: Draw, number: int, deviation: float, memory: float) -> NDArray[np.float64]:
    """Return values that wander about 0 (AR(1)): of each, the share `memory` remains in the next."""
    values = deviation * draw.standard_normal(number)
    for place in range(1, number):
        values[place] = memory * values[place - 1] + math.sqrt(1 - memory**2) * values[place]
    return values


NOISES: dict[str, Callable[[Draw, int], NDArray[np.float64]]] = {
    **{f"independent {s:.0%}": lambda draw, number, s=s: wander(draw, number, s, 0) for s in (0.01, 0.03, 0.05)},
    **{
        f"wandering {s:.0%}, memory {m:g}": lambda draw, number, s=s, m=m: wander(draw, number, s, m)
        for s in (0.01, 0.03, 0.05)
        for m in (0.5, 0.8, 0.95)
    },
    **{f"a walk of {s:.1%}": lambda draw, number, s=s: walk(draw, number, s) for s in (0.005, 0.01, 0.02)},
}


def findings_of(
    noise: str, number: int, *, seed: int, rise: float = 0.0, has_learned: bool = True, every: int = 1
) -> list[str]:
    """Return the finding at some of the validations, which fell at first; from a third of them on they rise."""
    places = np.arange(number)
    logs = math.log(0.1) + (np.log(0.3 + 0.7 * np.exp(-places / 1.5)) if has_learned else 0 * places)
    logs = logs + rise * np.maximum(0, places - number // 3) + NOISES[noise](np.random.default_rng(seed), number)
    validations = [(10 * n, value) for n, value in enumerate(np.exp(logs).tolist())]
    return [read_losses(np.empty((0, 2)), validations[:n]).finding for n in range(every, number + 1, every)]


@pytest.mark.parametrize("has_learned", [False, True])
@pytest.mark.parametrize("noise", NOISES)
def test_validations_that_wander_without_a_trend_are_seldom_called_overfitting(noise: str, has_learned: bool) -> None:
    """Of runs of thirty that wandered by 3 %, 33 % were called so at the end, and of runs of a hundred 80 %."""
    runs = [findings_of(noise, 30, seed=seed, has_learned=has_learned, every=5) for seed in range(20)]
    assert sum("overfitting" in findings for findings in runs) <= (
        5 if noise.endswith("2.0%") or "5%" in noise else 3
    ), "at some time"
    assert sum(findings[-1] in ("overfitting", "diverging") for findings in runs) <= 2, "at the end; up to 5 %"
    if "3%" in noise:
        long = [findings_of(noise, 100, seed=seed, has_learned=has_learned, every=100)[-1] for seed in range(20)]
        few = [findings_of(noise, number, seed=seed, every=number)[-1] for seed in range(20) for number in (4, 6, 8)]
        assert "overfitting" not in {*long, *few}


@pytest.mark.parametrize(
    ("noise", "rise", "later"),
    [
        ("independent 1%", 0.02, 11),
        ("independent 1%", 0.04, 7),
        ("independent 3%", 0.04, 7),
        ("wandering 1%, memory 0.8", 0.02, 10),
        ("wandering 3%, memory 0.8", 0.04, 7),
    ],
)
def test_validations_that_rise_are_called_overfitting_a_few_validations_later(
    noise: str, rise: float, later: int
) -> None:
    runs = [findings_of(noise, 30, seed=seed, rise=rise) for seed in range(15)]
    assert all(findings[-1] == "overfitting" for findings in runs)
    assert np.median([findings.index("overfitting") + 1 - 10 for findings in runs]) <= later


RATES = np.column_stack((np.arange(1, 2001), 1e-4 * (0.5 + 0.5 * np.cos(np.arange(2000) % 500 / 500 * math.pi))))


def of_restarts(seed: int, *, overfits: bool = False) -> tuple[NDArray[np.float64], list[tuple[int, float]]]:
    """Return losses and validations of a run that learns, of four cycles of the rate, which raises both by up to 15 %.

    Those that overfit rise by a half from the end of the second cycle on.
    """
    draw, steps = np.random.default_rng(seed), RATES[:, 0]
    levels = 0.1 * (0.5 + 0.5 * np.exp(-steps / 250)) * (1 + 1500 * RATES[:, 1])
    losses = levels * draw.lognormal(-0.06, 0.35, 2000)
    kept = np.append(0, np.arange(50, 2001, 50))
    values = np.append(0.1, levels[kept[1:] - 1] * draw.lognormal(0, 0.01, 40))
    values *= 1 + overfits * np.maximum(0, kept - 1000) / 2000
    return np.column_stack((steps, losses)), list(zip(kept.tolist(), values.tolist(), strict=True))


def test_a_restart_of_the_learning_rate_is_neither_divergence_nor_overfitting() -> None:
    """The training loss rises by 15 % for a while: each fourth run was called diverging, and others overfitting."""
    found: dict[bool, set[str]] = {False: set(), True: set()}
    for seed, overfits in itertools.product(range(10), found):
        losses, validations = of_restarts(seed, overfits=overfits)
        for until in range(100, 2001, 100):
            so_far = [(step, value) for step, value in validations if step <= until]
            verdict = read_losses(losses[:until], so_far, RATES[:until])
            found[overfits].add(verdict.finding)
        assert (verdict.finding == "overfitting") == overfits
    assert found[False] == {"learning", "flat", "unknown"}
    losses, validations = of_restarts(1)
    after_restart = read_losses(losses[:1100], [v for v in validations if v[0] <= 1100], RATES[:1100])
    assert "at a learning rate that has risen since." in after_restart.sentence


def test_a_run_that_breaks_at_a_restart_or_after_its_warm_up_diverges() -> None:
    losses, _ = of_restarts(1)
    losses[1500:, 1] *= 4
    assert read_losses(losses, (), RATES).finding == "diverging"
    warm_up = np.column_stack((RATES[:, 0], 1e-4 * np.minimum(1, RATES[:, 0] / 400)))
    assert read_losses(losses, (), warm_up).finding == "diverging"


def test_overfitting_since_the_first_validation_is_found_after_a_warm_up() -> None:
    validations = [(50 * n, 0.1 * (1 + 0.02 * n)) for n in range(12)]
    warm_up = np.column_stack((RATES[:, 0], 1e-4 * np.minimum(1, RATES[:, 0] / 100)))
    verdict = read_losses(np.empty((0, 2)), validations, warm_up)
    assert (verdict.finding, verdict.since_step) == ("overfitting", 100)


@pytest.mark.parametrize("last", [0.0995, 0.103])
def test_a_validation_loss_that_has_not_fallen_in_a_warm_up_is_not_said_to_fall(last: float) -> None:
    """It read "Learning: the validation loss fell, 0.1000 to 0.1030."."""
    warm_up = np.column_stack((RATES[:, 0], 1e-4 * np.minimum(1, RATES[:, 0] / 1000)))
    verdict = read_losses(np.empty((0, 2)), [(0, 0.1), (100, 0.0999), (200, 0.1), (300, last)], warm_up)
    assert verdict.finding == "unknown"
    assert "has not fallen yet, 0.1000 to" in verdict.sentence


def test_a_run_that_learned_nothing_since_its_warm_up_is_flat() -> None:
    """Its lowest validation is the first one, at a rate of 0: it read "Learning: the loss fell, 0.1000 to 0.1001"."""
    values = (0.1, 0.1001, 0.1002, 0.1001, 0.1003, 0.1001)
    warm_up = np.column_stack((RATES[:, 0], np.minimum(1, RATES[:, 0] / 50)))
    verdict = read_losses(np.empty((0, 2)), [(50 * n, value) for n, value in enumerate(values)], warm_up)
    assert verdict.sentence == (
        "Flat: the last 3 validations are neither clearly lower nor clearly higher than the first, 0.1000."
    )


def test_validations_that_rise_from_the_first_one_on_are_overfitting() -> None:
    """As of a small folder on a model that knew its subject already."""
    curve = [(10 * n, 0.1 * (1 + 0.02 * n)) for n in range(6)]
    verdict = read_losses(drawn(lambda t: 0.1, steps=100, seed=4), curve)
    assert (verdict.finding, verdict.since_step) == ("overfitting", 0)


def test_a_validation_far_above_that_of_the_untrained_model_is_overfitting_only_while_the_training_loss_falls() -> None:
    rises = [(0, 0.1), (25, 0.095), (50, 0.11), (75, 0.13), (100, 0.14)]
    assert read_losses(drawn(lambda t: 0.1 * math.exp(-5 * t), steps=400, seed=1), rises).finding == "overfitting"
    verdict = read_losses(drawn(lambda t: 0.1, steps=400, seed=1), rises)
    assert (verdict.finding, verdict.since_step) == ("diverging", 25)


def test_two_validations_that_fell_clearly_show_that_it_learns() -> None:
    losses = drawn(lambda t: 0.1, steps=60, seed=3)
    assert read_losses(losses, [(0, 0.1256), (42, 0.046)]).sentence == (
        "Learning: the validation loss fell, 0.1256 to 0.0460."
    )
    assert read_losses(losses, [(0, 0.1256), (42, 0.12)]).finding == "flat"


def test_a_loss_that_rose_again_is_not_called_falling() -> None:
    losses = drawn(lambda t: 0.1, steps=100, seed=4)
    falls = [(0, 0.1256), (42, 0.046), (84, 0.04)]
    assert read_losses(losses, falls).sentence.startswith("Learning: the validation loss is still falling, 0.1256 to")
    fell = "Learning so far: the validation loss fell, 0.1256 to 0.0400 at step 84; the last one is higher, "
    one, two, late = ([(126, 0.041)], [(126, 0.041), (168, 0.0417)], [(126, 0.0402), (168, 0.08)])
    for rest, last in ((one, "0.0410"), (two, "0.0417"), (late, "0.0800")):
        assert read_losses(losses, [*falls, *rest]).sentence == f"{fell}{last}."


def test_validations_of_a_diverged_run_do_not_call_it_overfitting() -> None:
    losses = drawn(lambda t: 0.1, steps=100, seed=2)
    assert read_losses(losses, [(0, 0.1), (25, 1.0), (50, 1.0), (75, 1.0)]).finding == "diverging"
    assert read_losses(losses, [(0, 0.1), (25, 0.08), (50, 0.0805), (75, 0.0803)]).finding == "learning"
    assert read_losses(losses, [(0, 0.1), (25, 0.08), (50, 0.0805), (75, 0.0803), (100, 0.0805)]).finding == "flat"


@pytest.mark.parametrize("seed", [2, 3, 6])
def test_a_slow_fall_that_turned_is_flat(seed: int) -> None:
    """The line through all losses still falls, but the last part is clearly above the lowest one."""
    losses = drawn(lambda t: 0.1 - 0.06 * t / 0.85 if t < 0.85 else 0.085, steps=400, seed=seed)
    assert read_losses(losses).finding == "flat"


@pytest.mark.parametrize("seed", [1, 3])
def test_a_few_losses_of_0_at_the_end_are_no_fall(seed: int) -> None:
    """Such as of images without a masked region, in which the logarithm of a loss would have no bound."""
    losses = drawn(lambda t: 0.1, steps=400, seed=seed)
    losses[360::20, 1] = 0
    assert read_losses(losses).finding == "flat"


@pytest.mark.parametrize(
    "validations",
    [
        (0.1, 0.099, 0.1, 0.1, 0.2),  # a last one far above the others is no divergence yet
        (0.06, 0.0605, 0.08, 0.08, 0.0601),  # a last one as low as the lowest is no overfitting
    ],
)
def test_the_last_validation_alone_does_not_decide(validations: tuple[float, ...]) -> None:
    curve = [(25 * n, value) for n, value in enumerate(validations)]
    assert read_losses(np.empty((0, 2)), curve).finding == "flat"


def test_flat_validations_are_described_by_whether_they_fell_before() -> None:
    curve = [(0, 0.1), (25, 0.06), (50, 0.0601), (75, 0.0601), (100, 0.0602)]
    sentence = read_losses(np.empty((0, 2)), curve).sentence
    assert sentence.startswith("Flat: the validation loss fell from 0.1000 to 0.0600 at step 25, and the last 3 are ")
