"""Many small items in one test: all are tried, and each that fails is named."""

from __future__ import annotations

import pytest

from tests.builders.for_each import for_each


def test_all_are_tried_and_what_fails_is_named() -> None:
    tried = []

    @for_each(["a", "bad", "b", "worse"], named=str.upper)
    def check(item: str) -> None:
        """A check."""
        tried.append(item)
        assert len(item) == 1, "too long"

    with pytest.raises(ExceptionGroup, match="2 of 4 fail") as caught:
        check()
    assert tried == ["a", "bad", "b", "worse"]
    assert [error.__notes__ for error in caught.value.exceptions] == [["for BAD"], ["for WORSE"]]
    assert (check.__name__, check.__doc__) == ("check", "A check.")


def test_nothing_to_try_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="nothing to try"):
        for_each([])(lambda item: None)()
