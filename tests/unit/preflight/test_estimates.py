"""A run that does not fit the GPU or the disk is reported with the other problems."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.estimate import disk
from modules.estimate.run_plan import RUNTIME_BYTES
from modules.system import hardware
from modules.system.hardware import Hardware
from tests.unit.preflight.setups import changed, errors
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate
from ui.loop.wording import preview_lines


@pytest.fixture
def published(config: Config) -> Config:
    """A fine-tune of a published model that is not on this disk."""
    return changed(
        config,
        model__base_model="stable-diffusion-v1-5/stable-diffusion-v1-5",
        training__trains="full",
        training__learning_rate=1e-5,
    )


def test_a_gpu_that_is_too_small(published: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "here", lambda: Hardware("cu128", is_mac=False, capabilities=(8.9,)))
    on_gpu = changed(published, general__train_device="cuda")
    for free_mib, is_reported in ((4_000, True), (80_000, False)):
        answer = f"0, GPU-1, 81920, {free_mib}\n"
        done = subprocess.CompletedProcess([], 0, answer)
        monkeypatch.setattr(subprocess, "run", lambda *_, done=done, **__: done)
        problems = [p for p in check(on_gpu).problems if "does not fit in the GPU's memory" in p.message]
        assert [p.severity for p in problems] == (["warning"] if is_reported else [])


def test_a_disk_that_is_too_small(published: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    little = SimpleNamespace(total=2**40, used=2**40 - 2**27, free=2**27)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: little)
    assert errors(check(published)) == ["model.hub_cache_dir", "output.destination", "general.workspace_dir"]


def test_the_estimate_is_in_the_preview(published: Config, config: Config) -> None:
    preview = check(published).preview
    assert preview is not None
    assert "GB" in preview.memory
    unknown = check(config).preview  # its parts' configs are empty
    assert unknown is not None
    assert unknown.memory == ""


def test_the_window_shows_the_estimate(published: Config) -> None:
    preview = check(published).preview
    assert preview is not None
    assert preview.memory in preview_lines(preview)
    assert preview_lines(replace(preview, memory="")) == [
        line for line in preview_lines(preview) if line != preview.memory
    ]


def test_a_cpu_has_no_cuda_runtime(published: Config) -> None:
    sizes = {Size(512, 512): 4}
    on_gpu, on_cpu = (memory_estimate(changed(published, general__train_device=d), sizes) for d in ("cuda", "auto"))
    assert on_gpu is not None
    assert on_cpu is not None
    assert on_gpu.peak.total_bytes - on_cpu.peak.total_bytes == RUNTIME_BYTES
    assert "runtime" in str(on_gpu)
    assert "runtime" not in str(on_cpu)
