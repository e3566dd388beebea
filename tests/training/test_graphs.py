"""Recorded steps: the losses and weights of a run without, through everything that changes between replays.

On a double of CUDA graphs that runs on a CPU (`tests/builders/recorded_operations.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules.config.schema import Config
from modules.system.devices import CPU, Device
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.recorded_operations import NotRecordableError, RecordedOperations
from tests.builders.runs import Ran, assert_equal_tensors, run, steps_of
from trainer.events import WarningRaised
from trainer.machine_events import SettingChosen
from trainer.methods.protocol import StepLoss
from trainer.preflight import graphs as preflight_graphs
from trainer.preflight.graphs import PASSED_ON, problems_of_graphs, records_steps, why_not_recorded
from trainer.run import stepper
from trainer.step import graphs as graphs_module
from trainer.step.graphs import CudaRecorder, StepGraphs, shapes_of, tensors_in, with_tensors
from trainer.step.loop import add_micro_batch
from trainer.step.precision import Precision


@pytest.fixture(scope="module")
def two_sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("two-sizes"), sizes=[(64, 64), (64, 64), (96, 64), (96, 64)])


@pytest.fixture
def config(tiny_sd: Path, two_sizes: Path, tmp_path: Path) -> Config:
    unet_only = {"unet": {"checkpointing": "block"}, "text_encoder": {"train": False}}
    # A rate with few bits: a recorded optimizer reads it in float32.
    changes = {"training": {"epochs": 3, "batch_size": 1, "learning_rate": 2.0**-10}, "parts": unet_only}
    return laid_over(small_config(tmp_path, model=tiny_sd, images=two_sizes), changes)


def recorded(config: Config, monkeypatch: pytest.MonkeyPatch, **more: Any) -> tuple[Ran, RecordedOperations]:
    recorder = RecordedOperations()
    with monkeypatch.context() as patched:
        patched.setattr(stepper, "records_steps", lambda *_: True)
        patched.setattr(stepper, "recorder_of", lambda _: recorder)
        return run(config, **more), recorder


SAMPLE = {"prompt": "a disc", "width_px": 64, "height_px": 64}
CASES: dict[str, dict[str, Any]] = {
    "LoRA, two sizes": {},
    "accumulation": {"training": {"accumulation_steps": 2, "clip_grad_norm": 0.1}},
}


FULL: dict[str, dict[str, Any]] = {
    "samples, validation and EMA": {
        "training": {"ema": {"mode": "train_device", "decay": 0.5}},
        "sampling": {"every": {"n": 4, "unit": "step"}, "prompts": [{**SAMPLE, "steps": 2}]},
    },
    "bfloat16": {"training": {"precision": "bfloat16"}},
    "fine-tune": {"training": {"trains": "full"}},
    "fine-tune of 16-bit weights": {"training": {"trains": "full"}, "parts": {"unet": {"dtype": "bfloat16"}}},
    "min-SNR, no checkpointing": {
        "training": {"loss": {"weighting": "min_snr"}},
        "parts": {"unet": {"checkpointing": "off"}},
    },
    "selective": {"parts": {"unet": {"checkpointing": "selective"}}},
    "16-bit weights rounded at random": {
        "training": {"trains": "full", "low_precision_updates": "stochastic"},
        "parts": {"unet": {"dtype": "bfloat16"}},
    },
    "an optimizer that is not recorded": {"training": {"optimizer": {"name": "adamw", "fused": False}}},
    "int8": {"parts": {"unet": {"dtype": "int8"}}, "training": {"precision": "bfloat16"}},
}

NOT_UPDATED = ("16-bit weights rounded at random", "an optimizer that is not recorded")


@pytest.mark.full
@pytest.mark.parametrize("case", [*CASES, *(pytest.param(name, marks=pytest.mark.full) for name in FULL)])
def test_a_recorded_run_is_the_run_without(config: Config, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    config = laid_over(config, (CASES | FULL)[case])
    plain = run(config)
    ran, recorder = recorded(config, monkeypatch)
    assert not [w for w in ran.of(WarningRaised) if "graphs" in w.message]
    assert steps_of(ran) == steps_of(plain)
    assert_equal_tensors(ran.weights, plain.weights)
    replays = [number for kind, number in recorder.events if kind == "replay"]
    updates = [number for number, names in enumerate(recorder.contents) if "aten::_fused_adamw_" in names]
    passes = [number for number in replays if number not in updates]
    assert len(set(passes)) == 2  # one graph for each size
    assert len(passes) == 12 - 2  # each size once without
    assert len(updates) == (0 if case in NOT_UPDATED else 1)
    assert sum(number in updates for number in replays) > 3 or case in NOT_UPDATED
    [chosen] = ran.of(SettingChosen)
    assert (chosen.path, "The optimizer is not, because" in chosen.summary) == (
        "training.cuda_graphs",
        case in NOT_UPDATED,
    )


@pytest.mark.full
def test_a_resumed_run_records_again_and_ends_the_same(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = recorded(config, monkeypatch)
    half, _ = recorded(laid_over(config, {"training": {"epochs": 2}}), monkeypatch)
    resumed, recorder = recorded(config, monkeypatch, resume_from=Path(half.finished.backup_path))
    assert steps_of(half) + steps_of(resumed) == steps_of(whole)
    assert_equal_tensors(resumed.weights, whole.weights)
    assert [kind for kind, _ in recorder.events].count("record") == 3  # two sizes, and the update


@pytest.mark.full
def test_what_cannot_be_recorded_runs_as_it_is(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout of the adapter, which preflight refuses, too."""
    config = laid_over(config, {"adapter": {"dropout": 0.5}})
    plain = run(config)
    ran, recorder = recorded(config, monkeypatch)
    [warning] = [w for w in ran.of(WarningRaised) if "graphs" in w.message]
    assert "could not be recorded as CUDA graphs: the model has layers with dropout" in warning.message
    assert not recorder.events
    assert steps_of(ran) == steps_of(plain)
    assert_equal_tensors(ran.weights, plain.weights)


class Two(torch.nn.Module):
    """Two layers, of which one may be frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two, self.unused = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2), torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x).sin())


def losses_and_gradients(graphs: StepGraphs, model: Two, numbers: list[int]) -> list[tuple[torch.Tensor, ...]]:
    found: list[tuple[torch.Tensor, ...]] = []
    for number in numbers:
        model.zero_grad()
        expected = Two()
        expected.load_state_dict(model.state_dict())
        expected.one.requires_grad_(model.one.weight.requires_grad)
        x = torch.full((2 + number % 2, 3), float(number))
        loss = graphs.add_gradients((x,), 0.5, lambda given: model(given[0]).square().mean())
        plain = expected(x).square().mean()
        (plain * 0.5).backward()
        assert torch.equal(loss, plain)
        for ours, exact in zip(model.parameters(), expected.parameters(), strict=True):
            assert (ours.grad is None) == (exact.grad is None)
            assert exact.grad is None or torch.equal(ours.grad, exact.grad)  # type: ignore[arg-type]
        found.append((loss, x))
    return found


def test_graphs_are_dropped_when_a_weight_moves_or_is_frozen() -> None:
    recorder, model = RecordedOperations(), Two()
    graphs = StepGraphs(recorder, [model])
    losses_and_gradients(graphs, model, [2, 4, 6, 3, 5])
    assert recorder.events == [("record", 0), ("replay", 0), ("replay", 0), ("record", 1), ("replay", 1)]
    model.two.weight.data = model.two.weight.data.clone()  # as a sample does that moves a part and back
    losses_and_gradients(graphs, model, [2])
    assert graphs.num_graphs == 0
    losses_and_gradients(graphs, model, [4, 6])
    assert recorder.events[-2:] == [("replay", 2), ("replay", 2)]
    model.one.requires_grad_(False)
    losses_and_gradients(graphs, model, [2, 4, 6])
    assert recorder.events[-3:] == [("record", 3), ("replay", 3), ("replay", 3)]


def test_a_loss_stays_when_the_next_replay_overwrites_its_memory() -> None:
    recorder, model = RecordedOperations(), Two()
    (_, _), (first, x), (second, _) = losses_and_gradients(StepGraphs(recorder, [model]), model, [2, 4, 6])
    assert torch.equal(first, model(x).square().mean())
    assert not torch.equal(first, second)


def test_gradients_of_recorded_and_other_micro_batches_are_added() -> None:
    model = Two()
    graphs = StepGraphs(RecordedOperations(), [model])
    losses_and_gradients(graphs, model, [2, 4])
    model.zero_grad()
    for x in (torch.ones(2, 3), torch.ones(5, 3), torch.ones(2, 3) * 2):  # recorded, new, recorded
        graphs.add_gradients((x,), 0.5, lambda given: model(given[0]).square().mean())
    found = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    for x in (torch.ones(2, 3), torch.ones(5, 3), torch.ones(2, 3) * 2):
        (model(x).square().mean() * 0.5).backward()
    for ours, parameter in zip(found, model.parameters(), strict=True):
        assert (ours is None) == (parameter.grad is None)
        assert ours is None or torch.equal(ours, parameter.grad)  # type: ignore[arg-type]


def test_a_number_of_the_host_is_that_of_the_recording() -> None:
    """Why learning rates must not be recorded, and what the double is for."""
    model, factor = Two(), [1.0]
    graphs = StepGraphs(RecordedOperations(), [model])
    x = torch.ones(2, 3)
    losses = []
    for number in (1.0, 2.0, 3.0):
        factor[0] = number
        losses.append(graphs.add_gradients((x,), 1.0, lambda given: model(given[0]).square().mean() * factor[0]))
    assert torch.equal(losses[1], losses[0] * 2)
    assert torch.equal(losses[2], losses[1])


def test_a_failed_recording_leaves_the_gradients_of_a_plain_run() -> None:
    model, reports = Two(), list[str]()
    graphs = StepGraphs(RecordedOperations(), [model], report=lambda graphs: reports.append(graphs.failure))

    def reads(given: tuple[torch.Tensor, ...]) -> torch.Tensor:
        loss = model(given[0]).square().mean()
        return loss if loss.item() > 0 else loss * 2

    for number in (1.0, 2.0, 3.0):
        model.zero_grad()
        x = torch.full((2, 3), number)
        loss = graphs.add_gradients((x,), 1.0, reads)
        found = model.one.weight.grad
        model.zero_grad()
        plain = model(x).square().mean()
        plain.backward()
        assert torch.equal(loss, plain)
        assert torch.equal(found, model.one.weight.grad)  # type: ignore[arg-type]
    [failure] = reports
    assert failure.startswith("aten._local_scalar_dense.default cannot be recorded")


class FakeCuda:
    """Streams of a GPU, and a capture that ends like torch's: if that fails, its stream stays the current one.

    It fails where what is recorded `breaks` it, and is complete if an error of the host alone ends that.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, breaks: bool) -> None:
        self.breaks, self.is_captured = breaks, False
        self.current, self.made, self.ended = "default", SimpleNamespace(device=torch.device("cuda:0")), list[str]()
        self.pools: list[Any] = []
        cuda, numbers = torch.cuda, itertools.count()  # 0 for the recorder, whose first graph gets 1
        monkeypatch.setattr(cuda, "graph_pool_handle", lambda: (0, next(numbers)))
        monkeypatch.setattr(cuda, "Stream", lambda device: self.made)
        monkeypatch.setattr(cuda, "current_stream", lambda device: self.current)
        monkeypatch.setattr(cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None, pool=self.pool))
        monkeypatch.setattr(cuda, "stream", self.stream)
        monkeypatch.setattr(cuda, "graph", self.graph)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda *given: self.ended.append(f"release {given}"))

    def pool(self) -> tuple[int, int]:
        """Return the pool of a complete capture."""
        if not self.is_captured:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return (0, 1)

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, graph: Any, *, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
        before, self.current = self.current, stream
        self.pools.append(pool)
        try:
            yield
        finally:
            if self.breaks:
                raise RuntimeError("operation failed due to a previous error during capture")
            self.is_captured = True
            self.current = before


@pytest.mark.parametrize(
    ("breaks", "fails", "keeps", "released"),
    [
        (True, True, True, ["release (0, (0, 1))"]),
        (True, False, True, ["release (0, (0, 1))"]),
        (True, True, False, []),  # torch releases it
        (False, True, True, []),  # the capture is complete: its graph releases it
        (False, False, True, []),
    ],
)
def test_a_failed_capture_leaves_its_stream_and_the_memory_of_the_allocator(
    monkeypatch: pytest.MonkeyPatch, breaks: bool, fails: bool, keeps: bool, released: list[str]
) -> None:
    cuda = FakeCuda(monkeypatch, breaks=breaks)
    monkeypatch.setattr(graphs_module, "_KEEPS_MEMORY", keeps)
    recorder = CudaRecorder(Device("cuda"))

    def run() -> None:
        if fails:
            raise RuntimeError("an operation that is not permitted")

    words = "not permitted" if fails else "previous error"
    with pytest.raises(RuntimeError, match=words) if fails or breaks else nullcontext():
        recorder.record(run)
    assert cuda.current == "default"
    assert cuda.ended == released


def test_a_pool_whose_graphs_are_gone_takes_no_further_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch refuses that as an internal error, which would end the graphs of a run after its first sample."""
    cuda = FakeCuda(monkeypatch, breaks=False)
    recorder = CudaRecorder(Device("cuda"))
    first, second = (recorder.record(lambda: None) for _ in range(2))
    del first
    third = recorder.record(lambda: None)
    del second, third
    fourth = recorder.record(lambda: None)
    fourth()
    *shared, new = cuda.pools
    assert shared == [(0, 1)] * 3
    assert new != (0, 1)


def test_a_micro_batch_leaves_no_graph_that_the_next_recording_would_meet() -> None:
    """Torch refuses to record where accumulating a gradient began before, on the stream of a plain batch."""
    weight = torch.nn.Parameter(torch.ones(2))

    def accumulation() -> Any:
        """Return the node that accumulates the weight's gradient: the same one while any graph has it."""
        return weight.expand_as(weight).grad_fn.next_functions[0][0]  # type: ignore[union-attr]

    def loss(batch: Any, context: Any) -> StepLoss:
        found = weight.square().sum()
        accumulation().metadata["of"] = "a plain batch"
        return StepLoss(found, num_samples=1, group_samples=1, is_last_micro_batch=True)

    stepper: Any = SimpleNamespace(begin=lambda step: None, backward=lambda step_loss: step_loss.loss.backward())
    batch, context = SimpleNamespace(step=0, micro_batch=0), SimpleNamespace(run_seed=0, device=CPU)
    method: Any = SimpleNamespace(loss=loss)
    left = add_micro_batch(batch, method, stepper, context, Precision("float32", CPU))  # type: ignore[arg-type]
    assert (float(left.loss), left.loss.requires_grad, weight.grad is None) == (2.0, False, False)
    assert "of" not in accumulation().metadata


def test_the_double_refuses_what_a_graph_refuses() -> None:
    x = torch.ones(3)
    for work in (lambda: x.sum().item(), lambda: torch.rand(3), lambda: x.nonzero(), lambda: torch.get_rng_state()):
        with pytest.raises(NotRecordableError):
            RecordedOperations().record(work)  # type: ignore[arg-type]
    replay = RecordedOperations().record(lambda: x.add_(1))  # type: ignore[arg-type, return-value]
    assert torch.equal(x, torch.ones(3))
    replay()
    assert torch.equal(x, torch.full((3,), 2.0))


def test_values_of_dataclasses_and_mappings_are_put_into_slots() -> None:
    tensors = [torch.tensor([float(n)]) for n in range(4)]
    value = (tensors[0], {"b": tensors[2], "a": (tensors[1], "text")}, [None, tensors[3]], 5)
    assert [float(t) for t in tensors_in(value)] == [0.0, 1.0, 2.0, 3.0]
    changed = with_tensors(value, iter([t + 10 for t in tensors]))
    assert [float(t) for t in tensors_in(changed)] == [10.0, 11.0, 12.0, 13.0]
    assert shapes_of(changed) == shapes_of(value)
    assert shapes_of((*value[:3], 6)) != shapes_of(value)
    assert shapes_of((torch.ones(2), *value[1:])) != shapes_of(value)


@pytest.mark.parametrize(
    ("changes", "device", "world_size", "because"),
    [
        ({}, "cuda", 1, ""),
        ({}, "cpu", 1, "only GPUs"),
        ({}, "cuda", 2, "several processes"),
        ({"training": {"precision": "float16"}}, "cuda", 1, "float16"),
        ({"training": {"loss": {"learned_weighting": True}}}, "cuda", 1, "learned"),
        ({"training": {"method": {"name": "dpo"}}}, "cuda", 1, "method"),
        ({"training": {"trains": "vae"}}, "cuda", 1, "method"),
        ({"parts": {"text_encoder": {"train": True}}}, "cuda", 1, "captions"),
        ({"data": {"text_cache": False}}, "cuda", 1, "captions"),
        ({"data": {"latent_cache": False}}, "cuda", 1, "latent cache"),
        ({"parts": {"unet": {"offload_fraction": 0.5}}}, "cuda", 1, "offloaded"),
        ({"parts": {"unet": {"offload_activations": True}}}, "cuda", 1, "offloaded"),
        ({"adapter": {"dropout": 0.1}}, "cuda", 1, "dropout"),
        ({"adapter": {"module_dropout": 0.1}}, "cuda", 1, "dropout"),
        (
            {"training": {"trains": "full", "optimizer": {"name": "adamw", "fused_back_pass": True}}},
            "cuda",
            1,
            "backward pass",
        ),
        ({"model": {"compile": "on"}}, "cuda", 1, "compiled"),
        ({"general": {"debug_checks": True}}, "cuda", 1, "debug checks"),
    ],
)
def test_what_cannot_be_recorded_is_named(
    config: Config, changes: dict[str, Any], device: str, world_size: int, because: str
) -> None:
    on = laid_over(config, {"training": {"cuda_graphs": "on"}})
    changed = laid_over(on, changes)
    found = why_not_recorded(changed, device, world_size)
    assert because in found
    assert bool(found) is bool(because)
    assert records_steps(changed, device, world_size) is not bool(because)


def test_the_drivers_allocator_shares_no_memory_of_graphs(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    assert "cudaMallocAsync" in why_not_recorded(config, "cuda", 1)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert not why_not_recorded(config, "cuda", 1)


def test_the_automatic_choice_is_off_until_a_gpu_has_passed(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    automatic = laid_over(config, {"training": {"cuda_graphs": "auto"}})
    assert not PASSED_ON
    assert not records_steps(automatic, "cuda", 1)
    monkeypatch.setattr(preflight_graphs, "PASSED_ON", ("a GPU",))
    assert records_steps(automatic, "cuda", 1)
    assert not records_steps(laid_over(config, {"training": {"cuda_graphs": "off"}}), "cuda", 1)


def test_a_run_on_a_cpu_says_that_it_records_nothing(config: Config) -> None:
    assert not list(problems_of_graphs(config))
    [problem] = problems_of_graphs(laid_over(config, {"training": {"cuda_graphs": "on"}}))
    assert (problem.path, problem.severity) == ("training.cuda_graphs", "warning")
    assert "because only GPUs have graphs" in problem.message
