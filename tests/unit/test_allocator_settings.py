"""The allocator on a GPU extends its segments, unless the user has set something else."""

from __future__ import annotations

import os
import platform as platform_module
import sys

import pytest

from modules.system import allocator
from modules.system.allocator import use_growing_segments

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


@pytest.mark.parametrize(
    ("platform", "build", "own", "expected"),
    [
        ("linux", "cu130", "", "expandable_segments:True"),
        ("linux", "", "", "expandable_segments:True"),  # torch's usual build for Linux
        ("linux", "rocm7.2", "", None),
        ("win32", "cu130", "", None),
        ("darwin", "", "", None),
        ("linux", "cu130", "PYTORCH_CUDA_ALLOC_CONF", None),
        ("linux", "cu130", "PYTORCH_ALLOC_CONF", "max_split_size_mb:64"),
    ],
)
def test_segments_grow(
    monkeypatch: pytest.MonkeyPatch, platform: str, build: str, own: str, expected: str | None
) -> None:
    monkeypatch.setattr(os, "environ", {own: "max_split_size_mb:64"} if own else {})
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(platform_module, "release", lambda: "6.8.0-generic")
    monkeypatch.setattr(allocator, "torch_build", lambda: build)
    use_growing_segments()
    assert os.environ.get(NAMES[0]) == expected


def test_segments_are_fixed_in_the_subsystem_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its drivers may refuse the first allocation of segments that grow."""
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform_module, "release", lambda: "6.6.87.2-microsoft-standard-WSL2")
    monkeypatch.setattr(allocator, "torch_build", lambda: "cu130")
    use_growing_segments()
    assert not os.environ
