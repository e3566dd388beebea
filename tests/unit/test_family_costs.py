"""The stored table of family costs agrees with the program: its text exactly, its figures to within a tenth."""

from __future__ import annotations

import re

import pytest

from tests.builders.family_costs import DOCUMENT, document

_AGAIN = "Generate it again: python -m tests.builders.family_costs"
_FIGURE = re.compile(r"^\d+(\.\d+)?(?= (GB|s)$|$)")


def test_the_table_of_costs_is_up_to_date() -> None:
    stored, now = DOCUMENT.read_text(encoding="utf-8").splitlines(), document().splitlines()
    assert len(stored) == len(now), _AGAIN
    for before, after in zip(stored, now, strict=True):
        old, new = before.split(" | "), after.split(" | ")
        assert len(old) == len(new), _AGAIN
        for one, other in zip(old, new, strict=True):
            figures = [_FIGURE.match(cell) for cell in (one, other)]
            if all(figures):
                assert float(one.split()[0]) == pytest.approx(float(other.split()[0]), rel=0.1), f"{_AGAIN}\n{after}"
            else:
                assert one == other, _AGAIN
