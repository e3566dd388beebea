"""A formula that the user writes: the factor on the learning rate as a function of the step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from modules.optim.expression import CONSTANTS, FUNCTIONS, ExpressionError, check_expression, evaluate
from modules.optim.schedule_spec import Position, ScheduleSettings, ScheduleSpec
from modules.settings.field import Setting
from modules.system.problem import Problem

_HALF_COSINE = "0.5 * (1 + cos(pi * progress))"


def _values(at: Position) -> dict[str, float]:
    return {
        "step": at.step,
        "total_steps": at.total_steps,
        "warmup": at.warmup_steps,
        "epoch": at.epoch,
        "epochs": at.epochs,
        "progress": at.progress,
    }


_NAMES = frozenset(_values(Position(0, 1)))


class Expression(ScheduleSettings):
    """A formula: the factor on the learning rate as a function of the step."""

    name: Literal["expression"] = "expression"
    expression: Annotated[
        str,
        Setting(
            "Expression",
            "The factor on the learning rate, as a formula of step (from 0), total_steps, epoch (with its fraction), "
            "epochs, warmup (steps) and progress (0 to 1, after the warm-up). "
            f"Functions: {', '.join(FUNCTIONS)}; constants: {', '.join(CONSTANTS)}; a if condition else b. "
            "Negative values count as 0.",
        ),
    ] = _HALF_COSINE


def _curve(settings: Expression, at: Position) -> float:
    return evaluate(settings.expression, _values(at))


def _problems(settings: Expression) -> Iterator[Problem]:
    try:
        check_expression(settings.expression, _NAMES)
    except ExpressionError as error:
        yield Problem("expression", f"The expression is not valid: {error}.", advice=f"An example: {_HALF_COSINE}")


EXPRESSION = ScheduleSpec(settings=Expression, label="Expression", curve=_curve, problems=_problems)
