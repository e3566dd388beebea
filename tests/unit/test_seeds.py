"""Seeds by name: equal arguments, equal seeds, in every process and every version."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.system.seeds import derive_seed

counters = st.lists(st.integers(0, 2**63 - 1), max_size=4).map(tuple)
arguments = st.tuples(st.integers(0, 2**32 - 1), st.text(max_size=12), counters)


@given(one=arguments, other=arguments)
def test_equal_arguments_and_only_they_give_equal_seeds(
    one: tuple[int, str, tuple[int, ...]], other: tuple[int, str, tuple[int, ...]]
) -> None:
    seeds = [derive_seed(seed, purpose, *numbers) for seed, purpose, numbers in (one, one, other)]
    assert seeds[0] == seeds[1]
    assert (seeds[0] == seeds[2]) == (one == other)
    assert 0 <= seeds[0] < 2**63


def test_neighbours_are_far_apart() -> None:
    seeds = {
        derive_seed(s, p, a, b) for s in range(6) for p in ("noise", "order") for a in range(20) for b in range(20)
    }
    assert len(seeds) == 6 * 2 * 20 * 20
    assert derive_seed(1, "noise", 2, 3) != derive_seed(1, "noise", 3, 2)
    assert derive_seed(1, "noise", 0) != derive_seed(1, "noise")
    assert derive_seed(1, "noise", 0) != derive_seed(0, "noise", 1)


@pytest.mark.parametrize(
    ("arguments", "seed"),
    [
        ((42, "noise", 0), 4852137882834734096),
        ((42, "noise", 1), 3101212389671534790),
        ((42, "order", 0), 2670592097134489991),
        ((0, "", 0), 4131447869561471253),
        ((4294967295, "caption", 1099511627776), 66216057504392400),
    ],
)
def test_the_seeds_stay_what_they_are(arguments: tuple[int, str, int], seed: int) -> None:
    """Otherwise a run resumed after an update would get other noise."""
    assert derive_seed(*arguments) == seed


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_a_counter_beyond_64_bits_is_an_error(number: int) -> None:
    with pytest.raises(Exception, match=r"argument out of range|int too large"):
        derive_seed(1, "noise", number)
