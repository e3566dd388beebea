"""Garbage collection that is off during imports."""

from __future__ import annotations

import gc

import pytest

from modules.system.process_setup import collection_off


@pytest.mark.parametrize("was_on", [True, False])
def test_collection_is_as_before_afterwards(was_on: bool) -> None:
    (gc.enable if was_on else gc.disable)()
    try:
        with collection_off():
            assert not gc.isenabled()
        assert gc.isenabled() == was_on
    finally:
        gc.enable()
