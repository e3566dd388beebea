"""What does not go together with several processes is refused, however they are started."""

from __future__ import annotations

from typing import Any

import pytest

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.system.ranks import ONLY_RANK, Rank
from tests.unit.preflight.setups import changed
from trainer.preflight.ranks import problems_of_ranks, sharded_parts
from trainer.preflight.run_budget import memory_estimate

REFUSED: dict[str, dict[str, Any]] = {
    "training.method": {"training__method": {"name": "online_dpo", "chosen_by": "person"}},
    "training.loss.learned_weighting": {"training__loss__learned_weighting": True},
    "training.optimizer.fused_back_pass": {"training__optimizer__fused_back_pass": True},
    "parts.unet.offload_fraction": {"parts__unet__offload_fraction": 0.5},
}


@pytest.mark.parametrize("path", REFUSED)
def test_what_several_processes_do_not_support_yet(config: Config, path: str) -> None:
    config = changed(config, **REFUSED[path])
    assert list(problems_of_ranks(config, ONLY_RANK)) == []
    [problem] = problems_of_ranks(config, Rank(1, 4))
    assert (problem.path, problem.severity) == (path, "error")
    assert "not supported yet with several processes (this run has 4)" in problem.message
    own = changed(config, multi_gpu__enabled=True, multi_gpu__device_indexes="0, 1")
    assert path in [p.path for p in problems_of_ranks(own, ONLY_RANK)]


FULL: dict[str, Any] = {"training__trains": "full", "parts__unet__train": True}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (FULL, ""),
        ({}, "Only the denoiser of a fine-tune can be sharded."),
        ({**FULL, "parts__unet__train": False, "parts__text_encoder__train": True}, "Only the denoiser"),
        ({**FULL, "training__optimizer": {"name": "adafactor"}}, "Adafactor needs whole weights."),
        ({**FULL, "training__precision": "float16"}, "The precision float16 is not supported."),
        ({**FULL, "model__compile": "on"}, "Compiled blocks are not supported."),
        ({**FULL, "parts__unet__offload_activations": True}, "Offloading is not supported."),
    ],
)
def test_what_can_be_sharded(config: Config, changes: dict[str, Any], reason: str) -> None:
    config = changed(config, **changes)
    assert bool(sharded_parts(config, 2)) is not bool(reason)
    assert sharded_parts(config, 1) == sharded_parts(changed(config, multi_gpu__sharding="off"), 2) == ()
    assert not list(problems_of_ranks(config, Rank(0, 2)))  # each process has all weights then
    wanted = list(problems_of_ranks(changed(config, multi_gpu__sharding="on"), Rank(0, 2)))
    assert [p.path for p in wanted] == (["multi_gpu.sharding"] if reason else [])
    assert not reason or reason in wanted[0].message


@pytest.mark.parametrize(
    ("indexes", "path", "severity"),
    [
        ("", "multi_gpu.enabled", "warning"),  # the machine of the tests has no GPU
        ("1", "multi_gpu.enabled", "warning"),
        ("0, 0", "multi_gpu.device_indexes", "error"),
        ("0, first", "multi_gpu.device_indexes", "error"),
        ("0, 1, 2", "training.batch_size", "warning"),
        ("0, 1", "", ""),
    ],
)
def test_the_gpus_of_a_run(config: Config, indexes: str, path: str, severity: str) -> None:
    config = changed(config, training__batch_size=2, multi_gpu__enabled=True, multi_gpu__device_indexes=indexes)
    assert [(p.path, p.severity) for p in problems_of_ranks(config, ONLY_RANK)] == ([(path, severity)] if path else [])


def test_the_estimate_counts_the_sums_of_gradients_that_processes_hold(config: Config) -> None:
    """At most the buffer is in transfer, or the largest weight; those of 16 bits are summed in float32."""
    published: dict[str, Any] = {
        "parts__text_encoder__train": False,
        "training__batch_size": 64,
        "model__base_model": "stable-diffusion-v1-5/stable-diffusion-v1-5",
        "multi_gpu__sharding": "off",
    }
    alone = changed(config, **FULL, **published, parts__unet__dtype="bfloat16")
    several = changed(alone, multi_gpu__enabled=True, multi_gpu__device_indexes="0, 1")

    def sums_of(config: Config, **changes: Any) -> int:
        estimate = memory_estimate(changed(config, **changes), {Size(512, 512): 4})
        assert estimate is not None
        training = estimate.phase("training")
        assert training is not None
        return dict(training.parts).get("gradient sums", 0)

    largest = 2560 * 1280 * 9
    assert sums_of(alone) == 0
    assert sums_of(several) == 4 * largest
    assert sums_of(several, multi_gpu__reduce_precision="weights") == 100 * 10**6
    assert sums_of(several, multi_gpu__async_reduce_buffer_mb=1000) == 1000 * 10**6
    assert sums_of(several, multi_gpu__async_reduce=False) == 4 * largest
    assert 3e9 < sums_of(several, multi_gpu__async_reduce_buffer_mb=60_000) < 4e9
