"""What only a GPU does when something fails: its errors, and the processes of several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed

from modules.system.errors import DarkroomError
from modules.system.ranks import Rank
from trainer.ranks import LostProcessError, SeveralProcesses, connect
from trainer.step.failures import explain, is_out_of_memory

TWO = Rank(index=0, world_size=2, local_index=0, num_local=2)


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",  # locking memory, a context
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "CUDA driver error: out of memory",
        "HIP error: out of memory",
        "MPS backend out of memory (MPS allocated: 8.00 GB)",
    ],
)
def test_memory_that_the_driver_or_a_library_lacks(words: str) -> None:
    assert is_out_of_memory(RuntimeError(words))
    assert "not enough memory" in explain(RuntimeError(words))[0]
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


def test_a_torch_that_was_built_for_other_gpus() -> None:
    message, advice = explain(RuntimeError("CUDA error: no kernel image is available for execution on the device"))
    assert message == "The installed torch was not built for this GPU."
    assert "Install the build" in advice


def test_weights_in_the_other_16_bit_dtype() -> None:
    weights = torch.ones(2, dtype=torch.float16)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RuntimeError) as caught:
        torch.cat([weights, weights])
    message, advice = explain(caught.value)
    assert "one 16-bit dtype" in message
    assert "Choose the same" in advice


def test_without_nccl_several_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "is_nccl_available", lambda: False)
    with pytest.raises(DarkroomError, match="NCCL"):
        connect(TWO, device_type="cuda")


def test_after_a_lost_process_no_gpu_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of NCCL on their way would keep the GPU waiting for half an hour, and the last backup with it."""
    aborted: list[str] = []

    def backend(device: torch.device) -> Any:
        return SimpleNamespace(name=lambda: "nccl", abort=lambda: aborted.append(device.type))

    def lost(*_: object, **__: object) -> None:
        raise RuntimeError("Connection closed by peer")

    world = SimpleNamespace(WORLD=SimpleNamespace(_get_backend=backend))
    monkeypatch.setattr(distributed, "group", world)
    monkeypatch.setattr(distributed, "all_reduce", lost)
    control, store = SimpleNamespace(), SimpleNamespace(check=lambda keys: False)
    ranks = SeveralProcesses(TWO, control, store)  # type: ignore[arg-type]
    with pytest.raises(LostProcessError):
        ranks.sums([1.0])
    assert aborted == ["cuda"]
