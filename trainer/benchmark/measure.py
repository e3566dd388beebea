"""Timing two ways of doing the same work, in turn, so that a machine whose speed drifts drifts for both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from modules.system.devices import Device


@dataclass(frozen=True, slots=True)
class Ratio:
    """How fast ours is against the bare way: 1 is as fast, 0.9 takes a ninth longer. Seconds are medians."""

    ratio: float
    lowest: float
    highest: float
    ours_seconds: float
    bare_seconds: float
    rounds: int


def paired(ours: Callable[[], None], bare: Callable[[], None], *, rounds: int, device: Device) -> Ratio:
    """Do both in turn, `rounds` times after one that does not count, and compare them pair by pair."""
    ours()
    bare()
    pairs = []
    for index in range(rounds):
        first, second = (ours, bare) if index % 2 == 0 else (bare, ours)
        times = {first: _seconds(first, device), second: _seconds(second, device)}
        pairs.append((times[ours], times[bare]))
    ratios = [b / o for o, b in pairs]
    return Ratio(
        ratio=statistics.median(ratios),
        lowest=min(ratios),
        highest=max(ratios),
        ours_seconds=statistics.median(o for o, _ in pairs),
        bare_seconds=statistics.median(b for _, b in pairs),
        rounds=rounds,
    )


def _seconds(work: Callable[[], None], device: Device) -> float:
    start = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - start


def wait_for(device: Device) -> None:
    """Wait until a device has done all that it was asked to; a processor has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device.torch)
