"""Deterministic mode: what cannot be repeated ends the run with a sentence, and nothing of it outlives the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from modules.rewards.models.pretrained import _resize, _resize_by_products
from modules.system.devices import Device
from tests.builders.configs import small_config
from tests.builders.runs import run
from trainer.events import RunFailed, StepFinished
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import StepLoss
from trainer.step.failures import explain
from trainer.step.precision import CUBLAS_WORKSPACE, Precision, process_settings, timed_kernels


def settings() -> tuple[object, ...]:
    return (
        os.environ.get(CUBLAS_WORKSPACE),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.cudnn_sdp_enabled(),
    )


@pytest.mark.parametrize(
    ("deterministic", "before", "inside"),
    [(True, None, ":4096:8"), (True, ":16:8", ":16:8"), (True, ":0:0", ":4096:8"), (False, None, None),
     (False, ":0:0", ":0:0")],
)  # fmt: skip
@pytest.mark.parametrize("breaks", [False, True])
def test_the_process_is_set_within_and_as_before_afterwards(
    monkeypatch: pytest.MonkeyPatch, deterministic: bool, before: str | None, inside: str | None, breaks: bool
) -> None:
    monkeypatch.delenv(CUBLAS_WORKSPACE, raising=False)
    if before is not None:
        monkeypatch.setenv(CUBLAS_WORKSPACE, before)
    was = settings()
    try:
        with process_settings(num_threads=1, precision="bfloat16", deterministic=deterministic):
            assert settings()[:3] == (inside, deterministic, False)
            assert not torch.backends.cuda.cudnn_sdp_enabled()  # its backward pass returned NaN on Hopper
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):  # as the attention of that name has it
                assert torch.backends.cuda.cudnn_sdp_enabled()
            assert not torch.backends.cuda.cudnn_sdp_enabled()
            if breaks:
                raise KeyError("planted")
    except KeyError:
        assert breaks
    assert settings() == was


def test_the_way_of_the_process_itself_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        was = settings()
        with process_settings(num_threads=1, precision="float32", deterministic=True):
            assert settings()[2] is False
        assert settings() == was
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_operation_that_cannot_be_repeated_ends_the_run_with_a_sentence(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deterministic: bool
) -> None:
    plain = Denoise.loss

    def loss(*arguments: Any) -> StepLoss:
        torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2))  # which of two values stays depends on chance
        return plain(*arguments)

    monkeypatch.setattr(Denoise, "loss", loss)
    was = settings()
    general = {"deterministic": deterministic}
    ran = run(small_config(tmp_path, model=tiny_sd, images=images, general=general, training={"epochs": 1}))
    assert settings() == was
    assert isinstance(ran.ending, RunFailed) == deterministic, ran.ending
    if isinstance(ran.ending, RunFailed):
        assert not ran.of(StepFinished)
        assert "Deterministic mode is on, but torch's put_ has no deterministic implementation" in ran.ending.message
        assert "Switch off deterministic mode" in ran.ending.advice


def test_a_gpu_that_was_used_without_it_requires_a_restart() -> None:
    """Torch reads the variable once in a process, so that setting it later has no effect; this is torch's message."""
    message, advice = explain(
        RuntimeError(
            "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or "
            "`at::Context::setDeterministicAlgorithms(true)`, but this operation is not deterministic because it uses "
            "CuBLAS and you have CUDA >= 10.2. To enable deterministic behavior in this case, you must set an "
            "environment variable before running your PyTorch application: CUBLAS_WORKSPACE_CONFIG=:4096:8 or "
            "CUBLAS_WORKSPACE_CONFIG=:16:8."
        )
    )
    assert message.startswith("Deterministic mode was switched on after")
    assert "Restart the program" in advice


@pytest.mark.parametrize(("size", "resized"), [((48, 80), (224, 224)), ((300, 200), (33, 22)), ((64, 64), (64, 32))])
def test_images_are_resized_alike_by_matrix_products(size: tuple[int, int], resized: tuple[int, int]) -> None:
    """On a GPU interpolate has no deterministic backward pass."""
    images = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))
    ours, plain = (way(images, resized) for way in (_resize_by_products, _resize))
    assert torch.allclose(ours, plain, atol=1e-5)


@pytest.mark.parametrize(
    ("device", "num_sizes", "deterministic", "is_on"),
    [("cuda", 4, False, True), ("cuda:1", 1, False, True), ("cuda", 5, False, False), ("cuda", 1, True, False),
     ("cpu", 1, False, False)],
)  # fmt: skip
def test_convolutions_of_few_sizes_are_timed(device: str, num_sizes: int, deterministic: bool, is_on: bool) -> None:
    with timed_kernels(Device(device), num_sizes=num_sizes, deterministic=deterministic):
        assert torch.backends.cudnn.benchmark == is_on
    assert not torch.backends.cudnn.benchmark


@pytest.mark.parametrize(
    ("name", "on_gpu", "on_cpu"),
    [("float32", "none", "none"), ("tfloat32", "all", "all"), ("bfloat16", "convolutions", "none"),
     ("float16", "convolutions", "none")],
)  # fmt: skip
def test_what_is_rounded_to_tf32(name: str, on_gpu: str, on_cpu: str) -> None:
    assert (Precision(name, Device("cuda")).tf32, Precision(name, Device("cpu")).tf32) == (on_gpu, on_cpu)
    with process_settings(num_threads=1, precision=name, deterministic=False):
        convolutions, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision() == "high"
    assert (
        on_gpu == {(False, False): "none", (True, False): "convolutions", (True, True): "all"}[convolutions, products]
    )
