"""A class of torch.optim.lr_scheduler, by its dotted name and its arguments, as OneTrainer's custom schedule."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal

from modules.optim.expression import ExpressionError, evaluate
from modules.optim.schedule_spec import Position, ScheduleSettings, ScheduleSpec
from modules.optim.torch_schedules import TORCH_SCHEDULES, rate_at
from modules.settings.field import Setting
from modules.system.problem import Problem, shown

_MODULE = "torch.optim.lr_scheduler"
_MAX_CHARS = 2000
_TRIED = Position(0, total_steps=1000, epochs=10, learning_rate=1e-4)


class Custom(ScheduleSettings):
    """A class of torch.optim.lr_scheduler with its arguments."""

    name: Literal["custom"] = "custom"
    class_name: Annotated[
        str,
        Setting(
            "Class",
            f"The name of the class, for example torch.optim.lr_scheduler.StepLR: {', '.join(TORCH_SCHEDULES)}.",
            empty_means="no class",
        ),
    ] = ""
    arguments: Annotated[
        str,
        Setting(
            "Arguments",
            "The arguments of the class, one per line: name = value. A value is a number, a quoted string, a list, or "
            "a calculation with the placeholders %LR%, %EPOCHS%, %STEPS_PER_EPOCH%, %TOTAL_STEPS% and "
            "%SCHEDULER_STEPS% (without the warm-up). A step is one optimizer update.",
            multiline=True,
        ),
    ] = ""


def _curve(settings: Custom, at: Position) -> float:
    """The class's rate, counted from the end of the warm-up, relative to the rate of the run.

    Parts with a learning rate of their own so keep their ratio to it, also where the arguments are rates.
    """
    rate = at.learning_rate or 1.0
    arguments = _arguments(settings.arguments, tuple(_placeholders(at).items()))
    return rate_at(_class_of(settings.class_name), arguments, at.step - at.warmup_steps, rate) / rate


def _class_of(class_name: str) -> str:
    """Return the name of a supported class without its module. Raises ValueError for any other."""
    module, _, name = class_name.strip().rpartition(".")
    if name in TORCH_SCHEDULES and module in ("", _MODULE):
        return name
    what = "no class is given" if not class_name.strip() else f"the class {shown(class_name)} is not supported"
    raise ValueError(
        f"{what}: supported are the classes of {_MODULE} that depend on the step alone, {', '.join(TORCH_SCHEDULES)}"
    )


def _placeholders(at: Position) -> dict[str, float]:
    return {
        "LR": at.learning_rate,
        "EPOCHS": at.epochs,
        "STEPS_PER_EPOCH": max(1, at.total_steps // max(1, at.epochs)),
        "TOTAL_STEPS": at.total_steps,
        "SCHEDULER_STEPS": max(1, at.total_steps - at.warmup_steps),
    }


@lru_cache(maxsize=32)
def _arguments(text: str, placeholders: tuple[tuple[str, float], ...]) -> dict[str, Any]:
    """Return the arguments by name. Raises ValueError for a line that is not an argument."""
    if len(text) > _MAX_CHARS:
        raise ValueError(f"the arguments are longer than {_MAX_CHARS} characters")
    found: dict[str, Any] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name.isidentifier():
            raise ValueError(f"the argument {shown(line)} should be name = value")
        found[name] = _value(name, value, dict(placeholders))
    return found


def _value(name: str, text: str, placeholders: Mapping[str, float]) -> Any:
    for placeholder in placeholders:
        text = text.replace(f"%{placeholder}%", f" {placeholder} ")
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        pass  # not a literal: a calculation, or a bare word such as cos
    if text.strip()[:1] == "[" and text.strip()[-1:] == "]":
        return [_value(name, entry, placeholders) for entry in text.strip()[1:-1].split(",") if entry.strip()]
    if text.strip().isidentifier() and text.strip() not in placeholders:
        return {"true": True, "false": False, "none": None}.get(text.strip().lower(), text.strip())
    try:
        number = evaluate(text, placeholders)
    except ExpressionError as error:
        raise ValueError(f"the value {shown(text.strip())} of {name} cannot be used: {error}") from error
    return int(number) if number.is_integer() else number


def _problems(settings: Custom) -> Iterator[Problem]:
    try:
        _class_of(settings.class_name)
    except ValueError as error:
        yield _problem("class_name", error)
        return
    try:
        for step in (0, 1, 500, 999):
            _curve(settings, Position(step, _TRIED.total_steps, 0, _TRIED.epochs, _TRIED.learning_rate))
    except (ValueError, ArithmeticError) as error:
        yield _problem("arguments", error)


def _problem(field: str, error: Exception) -> Problem:
    message = str(error)
    return Problem(field, f"{message[:1].upper()}{message[1:]}.", advice="Correct it, or choose another schedule.")


CUSTOM = ScheduleSpec(settings=Custom, label="PyTorch class", curve=_curve, problems=_problems)
