"""The custom schedule, as OneTrainer's: a class of torch.optim.lr_scheduler, by its dotted name and its arguments.

The classes are written here as functions of the step, for three reasons. The window draws the curve and checks the
arguments without torch. A run needs the learning rate of any step: when it resumes, and when a setting that may change
then has changed. And torch's classes multiply the last rate by a factor at each step, so that the last bits of a rate
would depend on where the run was resumed. `tests/training/test_schedules.py` compares each of them with torch's class.
"""

from __future__ import annotations

import ast
import inspect
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

from modules.optim.schedule_spec import Position, ScheduleSettings, ScheduleSpec
from modules.optim.schedules.expression import ExpressionError, evaluate
from modules.settings.field import Setting
from modules.system.problem import Problem, quote

# Each function takes the step, counted from 0, and the learning rate that is set, then the arguments of torch's
# constructor. It returns the learning rate that torch's class sets there, when it is stepped once per optimizer step.


def _step(step: int, rate: float, *, step_size: int, gamma: float = 0.1) -> float:
    return rate * math.pow(gamma, step // step_size)


def _multi_step(step: int, rate: float, *, milestones: Sequence[int], gamma: float = 0.1) -> float:
    return rate * math.pow(gamma, bisect_right(sorted(milestones), step))


def _constant(step: int, rate: float, *, factor: float = 1.0 / 3, total_iters: int = 5) -> float:
    return rate * factor if step < total_iters else rate


def _linear(
    step: int, rate: float, *, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: int = 5
) -> float:
    return rate * (start_factor + (end_factor - start_factor) * min(step, total_iters) / total_iters)


def _exponential(step: int, rate: float, *, gamma: float) -> float:
    return rate * math.pow(gamma, step)


def _polynomial(step: int, rate: float, *, total_iters: int = 5, power: float = 1.0) -> float:
    return rate * math.pow(1.0 - min(step, total_iters) / total_iters, power)


def _cosine(step: int, rate: float, *, T_max: int, eta_min: float = 0.0) -> float:
    return eta_min + (rate - eta_min) * (1.0 + math.cos(math.pi * step / T_max)) / 2.0


def _cosine_restarts(step: int, rate: float, *, T_0: int, T_mult: int = 1, eta_min: float = 0.0) -> float:
    """Loshchilov and Hutter 2017, eq. 5: cycles of `T_0` steps, each `T_mult` times as long as the one before."""
    if not (isinstance(T_0, int) and isinstance(T_mult, int) and T_0 >= 1 and T_mult >= 1):
        raise ValueError("T_0 and T_mult must be whole numbers of at least 1")
    length = T_0
    if T_mult == 1:
        step %= T_0
    else:
        while step >= length:
            step -= length
            length *= T_mult
    return _cosine(step, rate, T_max=length, eta_min=eta_min)


def _one_cycle(
    step: int,
    rate: float,
    *,
    max_lr: float,
    total_steps: int | None = None,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    pct_start: float = 0.3,
    anneal_strategy: Literal["cos", "linear"] = "cos",
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    three_phase: bool = False,
) -> float:
    """Smith and Topin 2019. Beyond its last step it keeps the lowest rate, where torch's class raises an error."""
    if total_steps is None and epochs is not None and steps_per_epoch is not None:
        total_steps = epochs * steps_per_epoch
    if total_steps is None:
        raise ValueError("total_steps, or epochs and steps_per_epoch, are missing")
    if anneal_strategy not in ("cos", "linear"):
        raise ValueError('anneal_strategy must be "cos" or "linear"')
    first = max_lr / div_factor
    last = first / final_div_factor
    ends, rates = [pct_start * total_steps - 1, total_steps - 1.0], [first, max_lr, last]
    if three_phase:
        ends.insert(1, 2 * pct_start * total_steps - 2)
        rates.insert(2, first)
    start = 0.0
    for phase, end in enumerate(ends):
        if step <= end:
            share = (step - start) / (end - start)
            return _anneal(rates[phase], rates[phase + 1], share, is_linear=anneal_strategy == "linear")
        start = end
    return last


def _anneal(start: float, end: float, share: float, *, is_linear: bool) -> float:
    return start + (end - start) * (share if is_linear else (1.0 - math.cos(math.pi * share)) / 2.0)


def _cyclic(
    step: int,
    rate: float,
    *,
    base_lr: float,
    max_lr: float,
    step_size_up: int = 2000,
    step_size_down: int | None = None,
    mode: Literal["triangular", "triangular2", "exp_range"] = "triangular",
    gamma: float = 1.0,
) -> float:
    """Smith 2017, triangular cycles between two rates."""
    length = step_size_up + (step_size_up if step_size_down is None else step_size_down)
    cycle, within = divmod(step, length)
    rises = within <= step_size_up
    height = within / step_size_up if rises else 1.0 - (within - step_size_up) / (length - step_size_up)
    match mode:
        case "triangular":
            scale = 1.0
        case "triangular2":
            scale = math.pow(0.5, cycle)
        case "exp_range":
            scale = math.pow(gamma, step)
        case _:
            raise ValueError('mode must be "triangular", "triangular2" or "exp_range"')
    return base_lr + (max_lr - base_lr) * height * scale


RateAt = Callable[..., float]

TORCH_SCHEDULES: Mapping[str, RateAt] = {
    "StepLR": _step,
    "MultiStepLR": _multi_step,
    "ConstantLR": _constant,
    "LinearLR": _linear,
    "ExponentialLR": _exponential,
    "PolynomialLR": _polynomial,
    "CosineAnnealingLR": _cosine,
    "CosineAnnealingWarmRestarts": _cosine_restarts,
    "OneCycleLR": _one_cycle,
    "CyclicLR": _cyclic,
}
WITHOUT_EFFECT = frozenset({"last_epoch", "verbose", "cycle_momentum", "base_momentum", "max_momentum"})
"""Arguments of these classes that do not change the learning rate: the momentum is the optimizer's setting here."""


def rate_at(name: str, arguments: Mapping[str, Any], step: int, rate: float) -> float:
    """Return the learning rate of a class of torch.optim.lr_scheduler at a step; `rate` is the one that is set.

    Raises ValueError or ArithmeticError for arguments that the class does not have, or that have no value.
    """
    given = {key: value for key, value in arguments.items() if key not in WITHOUT_EFFECT}
    parameters = inspect.signature(TORCH_SCHEDULES[name]).parameters
    known = {key: p for key, p in parameters.items() if p.kind == p.KEYWORD_ONLY}
    if unknown := given.keys() - known.keys():
        raise ValueError(f"{name} has no argument {', '.join(sorted(unknown))} (it has {', '.join(known)})")
    if missing := [key for key, p in known.items() if p.default is p.empty and key not in given]:
        raise ValueError(f"{name} needs the argument {', '.join(missing)}")
    try:
        value = TORCH_SCHEDULES[name](step, rate, **given)
    except TypeError as error:
        raise ValueError(f"an argument of {name} is not of the right kind ({error})") from error
    except OverflowError as error:
        raise ValueError("its learning rate is too large") from error
    if not math.isfinite(value):
        raise ValueError("its learning rate is not finite")
    return value


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

    Parts with their own learning rate keep their ratio to it in this way, even if the arguments are rates.
    """
    rate = at.learning_rate or 1.0
    arguments = _arguments(settings.arguments, tuple(_placeholders(at).items()))
    return rate_at(_class_of(settings.class_name), arguments, at.step - at.warmup_steps, rate) / rate


def _class_of(class_name: str) -> str:
    """Return the name of a supported class without its module. Raises ValueError for any other."""
    module, _, name = class_name.strip().rpartition(".")
    if name in TORCH_SCHEDULES and module in ("", _MODULE):
        return name
    what = "no class is given" if not class_name.strip() else f"the class {quote(class_name)} is not supported"
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
    arguments: dict[str, Any] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name.isidentifier():
            raise ValueError(f"the argument {quote(line)} should be name = value")
        arguments[name] = _value(name, value, dict(placeholders))
    return arguments


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
        raise ValueError(f"the value {quote(text.strip())} of {name} cannot be used: {error}") from error
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
