"""A formula that the user writes: the factor on the learning rate as a function of the step."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Literal

from modules.optim.schedule_spec import Position, ScheduleSettings, ScheduleSpec
from modules.settings.field import Setting
from modules.system.problem import Problem

# Formulas that users write: a small, safe part of Python's expressions, never executed by Python.
#
# Numbers, names, + - * / // % **, comparisons, `and`, `or`, `not`, `a if b else c` and a few functions. All numbers are
# floats, so that no power or product can take much time or memory.
MAX_CHARS = 500
_MAX_NODES = 300

FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "min": min, "max": max, "abs": abs, "sqrt": math.sqrt, "exp": math.exp, "log": math.log, "sin": math.sin,
    "cos": math.cos, "tan": math.tan, "tanh": math.tanh, "floor": math.floor, "ceil": math.ceil, "round": round,
}  # fmt: skip
CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e}
_NUM_ARGUMENTS: Mapping[str, tuple[int, int]] = {"min": (2, 20), "max": (2, 20), "log": (1, 2)}

_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,  # unlike `**`, never a complex number
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}

Names = Mapping[str, float]
_Node = Callable[[Names], float]


class ExpressionError(ValueError):
    """An expression that cannot be read or calculated; the message is a sentence without its full stop."""


def check_expression(text: str, names: frozenset[str]) -> None:
    """Raise ExpressionError if an expression of these names (besides `CONSTANTS`) cannot be read."""
    _compile(text, names)


def evaluate(text: str, values: Names) -> float:
    """Return the value of an expression of some names and their values.

    Raises ExpressionError if it cannot be read, or has no finite value for these values.
    """
    node = _compile(text, frozenset(values))
    try:
        value = float(node({**CONSTANTS, **values}))
    except ZeroDivisionError as error:
        raise ExpressionError("it divides by zero") from error
    except (OverflowError, ValueError) as error:
        raise ExpressionError(f"it has no value ({error})") from error
    if not math.isfinite(value):
        raise ExpressionError("its value is not finite")
    return value


@lru_cache(maxsize=128)
def _compile(text: str, names: frozenset[str]) -> _Node:
    if len(text) > MAX_CHARS:
        raise ExpressionError(f"it is longer than {MAX_CHARS} characters")
    if not text.strip():
        raise ExpressionError("it is empty")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        place = f" at character {error.offset}" if error.offset else ""
        raise ExpressionError(f"it cannot be read{place} ({error.msg})") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError("it cannot be read") from error
    if sum(1 for _ in ast.walk(tree)) > _MAX_NODES:
        raise ExpressionError("it is too long")
    return _node(tree.body, names | frozenset(CONSTANTS))


def _node(node: ast.expr, names: frozenset[str]) -> _Node:
    """Return the function that calculates a node; raises ExpressionError for anything that is not allowed."""
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return _constant(value)
        case ast.Name(id=name) if name in names:
            return lambda values: values[name]
        case ast.Name(id=name):
            known = ", ".join(sorted(names))
            what = "is a function and needs parentheses" if name in FUNCTIONS else f"is not known (known: {known})"
            raise ExpressionError(f'"{name}" {what}')
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _apply_binary(_BINARY[type(op)], _node(left, names), _node(right, names))
        case ast.UnaryOp(op=op, operand=operand):
            return _unary(op, _node(operand, names))
        case ast.BoolOp(op=op, values=parts):
            return _logical(op, [_node(part, names) for part in parts])
        case ast.Compare():
            return _comparison(node, names)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _choice(*(_node(part, names) for part in (test, body, orelse)))
        case ast.Call():
            return _call(node, names)
        case _:
            raise ExpressionError(f'"{ast.unparse(node)[:40]}" is not allowed: only calculations with numbers are')


def _constant(value: float) -> _Node:
    try:
        number = float(value)
    except OverflowError as error:
        raise ExpressionError("a number in it is too large") from error
    return lambda values: number


def _apply_binary(function: Callable[[float, float], float], left: _Node, right: _Node) -> _Node:
    return lambda values: function(left(values), right(values))


def _unary(op: ast.unaryop, operand: _Node) -> _Node:
    match op:
        case ast.USub():
            return lambda values: -operand(values)
        case ast.UAdd():
            return operand
        case ast.Not():
            return lambda values: float(not operand(values))
        case _:
            raise ExpressionError('"~" is not allowed')


def _logical(op: ast.boolop, parts: list[_Node]) -> _Node:
    if isinstance(op, ast.And):
        return lambda values: float(all(part(values) for part in parts))
    return lambda values: float(any(part(values) for part in parts))


def _comparison(node: ast.Compare, names: frozenset[str]) -> _Node:
    operands = [_node(part, names) for part in (node.left, *node.comparators)]
    for op in node.ops:
        if type(op) not in _COMPARISONS:
            raise ExpressionError("only < <= > >= == != compare numbers")
    functions = [_COMPARISONS[type(op)] for op in node.ops]

    def compare(values: Names) -> float:
        numbers = [operand(values) for operand in operands]
        return float(all(f(a, b) for f, a, b in zip(functions, numbers, numbers[1:], strict=False)))

    return compare


def _choice(test: _Node, body: _Node, orelse: _Node) -> _Node:
    return lambda values: body(values) if test(values) else orelse(values)


def _call(node: ast.Call, names: frozenset[str]) -> _Node:
    name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)[:40]
    if name not in FUNCTIONS:
        raise ExpressionError(f'the function "{name}" is not known (known: {", ".join(FUNCTIONS)})')
    fewest, most = _NUM_ARGUMENTS.get(name, (1, 1))
    if node.keywords or not fewest <= len(node.args) <= most:
        counts = "one argument" if most == 1 else f"{fewest} to {most} arguments"
        raise ExpressionError(f'the function "{name}" has {counts} argument{"" if fewest == most == 1 else "s"}')
    function, arguments = FUNCTIONS[name], [_node(argument, names) for argument in node.args]
    return lambda values: function(*(argument(values) for argument in arguments))


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
