"""Formulas of users: what they calculate, and that nothing else can be written."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.optim.schedules.expression import MAX_CHARS, ExpressionError, check_expression, evaluate
from tests.unit.strategies import few


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * x ** 2 - -x", 11.0),
        ("7 // x + 7 % x", 4.0),
        ("0.5 * (1 + cos(pi))", 0.0),
        ("min(x, 1, 5) + max(1, x) + abs(-1)", 4.0),
        ("sqrt(4) + exp(0) + log(e) + log(8, 2)", 7.0),
        ("3 if x > 1 and not x == 3 else 4", 3.0),
        ("0 < x <= 2", 1.0),
        ("x < 0 or x != 2", 0.0),
        ("floor(1.5) + ceil(1.5) + round(1.6)", 5.0),
        ("sin(0) + tan(0) + tanh(0) + True", 1.0),
        ("  +x\n", 2.0),
    ],
)
def test_values(text: str, value: float) -> None:
    assert evaluate(text, {"x": 2.0}) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ("1 +", "cannot be read"),
        ("y", '"y" is not known (known: e, pi, x)'),
        ("sin", '"sin" is a function and needs parentheses'),
        ("open(x)", 'the function "open" is not known'),
        ("x.real", '"x.real" is not allowed'),
        ("x.__class__()", 'the function "x.__class__" is not known'),
        ("().__class__", "is not allowed"),
        ("[x for x in (1,)]", "is not allowed"),
        ("lambda: 1", "is not allowed"),
        ("(y := 1)", "is not allowed"),
        ("f'{x}'", "is not allowed"),
        ("'text' * 9", "is not allowed"),
        ("1j", "is not allowed"),
        ("x[0]", "is not allowed"),
        ("min(*x)", "2 to 20 arguments"),
        ("min(x, key=x)", "2 to 20 arguments"),
        ("sin(x, x)", "has one argument"),
        ("x in x", "compare numbers"),
        ("~x", "is not allowed"),
        ("x << 2", "is not allowed"),
        ("1" * 400, "too large"),
        ("x" + "+x" * MAX_CHARS, "longer than"),
        ("-" * 400 + "x", "too long"),
        ("(" * 300 + "x" + ")" * 199, "cannot be read"),
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str, words: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        check_expression(text, frozenset({"x"}))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 / (x - 2)", "divides by zero"),
        ("x % 0", "divides by zero"),
        ("9 ** 9 ** 9 ** 9", "no value"),
        ("exp(1000)", "no value"),
        ("(-1) ** 0.5", "no value"),
        ("log(0)", "no value"),
        ("1e308 * 10", "not finite"),
        ("floor(1e308 * 10)", "no value"),
    ],
)
def test_what_has_no_value_is_an_error(text: str, words: str) -> None:
    check_expression(text, frozenset({"x"}))
    with pytest.raises(ExpressionError, match=words):
        evaluate(text, {"x": 2.0})


@few
@given(st.text(max_size=60) | st.text("x0123456789.+-*/%()<>= ,esinco", max_size=60))
def test_any_text_has_a_finite_value_or_an_error(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        assert math.isfinite(evaluate(text, {"x": 0.5}))
