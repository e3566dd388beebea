"""Compiled blocks: the gradients of the plain ones, in every combination; counted, reported, and never a crash.

With a backend of torch's that generates no code ("aot_eager"), which takes a second instead of a minute.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter as time
from typing import Any

import pytest
import torch

from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.families.protocol import ModelFamily, PartMemory
from modules.memory.checkpointing import create_checkpointed_forward
from modules.memory.compiled_blocks import INDUCTOR, Compilation
from modules.system.devices import CPU, Device
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import assert_equal_tensors, run
from tests.training.test_checkpointing import (
    Parameters,
    chained,
    in_bfloat16,
    plain_gradients,
    predicted,
    trained,
    with_a_reference,
    with_lora,
)
from trainer.callbacks import compile_trial
from trainer.events import BackupSaved, StepFinished, WarningRaised
from trainer.machine_events import BlocksCompiled, SettingChosen
from trainer.preflight.requirements import problems_of_speed
from trainer.run import loading
from trainer.run.automatic_choices import measures_compiled_blocks
from trainer.run.loading import compilation_of
from trainer.run.setup import Clocks

TEMP = Device("cpu:1")


@pytest.fixture(autouse=True)
def nothing_left_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


class Few(Compilation):
    """Compiles a transformer block and a residual block only, which takes a second."""

    def compile_in_place(self, blocks: Sequence[torch.nn.Module]) -> None:
        kinds = {type(block): block for block in blocks}
        super().compile_in_place(list(kinds.values()))


class One(Compilation):
    """Compiles a transformer block only, which has layers of an adapter."""

    def compile_in_place(self, blocks: Sequence[torch.nn.Module]) -> None:
        super().compile_in_place([b for b in blocks if type(b).__name__ == "BasicTransformerBlock"][-1:])


def compilation(kind: type[Compilation] = Few, *, backend: str = "aot_eager") -> Compilation:
    return kind(iter(range(1_000_000)).__next__, backend=backend)


def compiled_gradients(
    family: ModelFamily, parameters: Parameters, memory: PartMemory, loss: Any = predicted
) -> dict[str, torch.Tensor | None]:
    family.set_memory({"unet": memory}, train_device=CPU, temp_device=TEMP)
    for parameter in parameters.values():
        parameter.grad = None
    torch.manual_seed(0)  # for dropout
    loss(family).backward()
    return {name: p.grad for name, p in parameters.items()}


def assert_close(plain: dict[str, torch.Tensor | None], found: dict[str, torch.Tensor | None], rtol: float) -> None:
    largest = max(g.abs().max() for g in plain.values() if g is not None)
    for name, gradient in plain.items():
        if gradient is None:
            assert found[name] is None, name
        else:
            torch.testing.assert_close(found[name], gradient, rtol=rtol, atol=rtol * float(largest))


EVERY_DAY = {
    "full, layers offloaded": ("full", predicted, PartMemory("block", offload_fraction=0.6)),
    "LoRA with dropout, activations offloaded": (
        "lora-dropout",
        predicted,
        PartMemory("block", offload_activations=True),
    ),
}
FULL = {
    "full": ("full", predicted, PartMemory("off")),
    "full, a loop": ("full", chained, PartMemory("whole")),
    "full, everything offloaded": ("full", predicted, PartMemory("block", True, 0.6)),
    "LoRA in bfloat16": ("lora", in_bfloat16, PartMemory("off", offload_activations=True)),
    "LoRA, a loop": ("lora-dropout", chained, PartMemory("block")),
    "LoKr": ("lokr", predicted, PartMemory("block")),
    "LoRA, selective": ("lora-dropout", predicted, PartMemory("selective")),
    "full, transformer blocks": ("full", predicted, PartMemory("transformer")),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("case", [*EVERY_DAY, *(pytest.param(name, marks=pytest.mark.full) for name in FULL)])
def test_gradients_are_those_of_the_plain_blocks(tiny_sd: Path, case: str) -> None:
    kind, loss, memory = (EVERY_DAY | FULL)[case]
    family, parameters = trained(tiny_sd, kind)
    compiling = compilation(Few if case in EVERY_DAY else Compilation)
    found = compiled_gradients(family, parameters, dataclasses.replace(memory, compilation=compiling), loss)
    assert not compiling.failure
    counts = compiling.counts
    if case in FULL:
        assert counts.num_blocks == 15
        assert 0 < counts.num_graphs < 15  # blocks of one structure share a graph
    assert counts.num_blocks >= 2
    assert_close(plain_gradients(tiny_sd, kind, loss), found, 1e-5 if loss is not in_bfloat16 else 0.02)


class Block(torch.nn.Module):
    """A block with a layer of an adapter, switched as peft's and ours are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.change = torch.nn.Linear(4, 4)
        self.is_enabled = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu() + self.change(x) if self.is_enabled else self.layer(x).relu()


def compiled_block(compiling: Compilation, *, mode: Any = "block") -> tuple[Block, Any]:
    torch.manual_seed(0)
    block = Block()
    part = torch.nn.Sequential(block)
    forward = create_checkpointed_forward(
        part, train_device=CPU, temp_device=TEMP, mode=mode, block_types=(Block,), compilation=compiling
    )
    return block, forward


def test_another_size_or_another_trained_part_compiles_again_and_is_counted() -> None:
    compiling = compilation(Compilation)
    block, forward = compiled_block(compiling)
    numbers = []
    for size in (2, 2, 3, 2, 3):
        forward(torch.ones(size, 4)).sum().backward()
        numbers.append(compiling.counts.num_graphs)
    block.change.requires_grad_(False)  # a part whose training has ended
    block.zero_grad()
    forward(torch.ones(2, 4)).sum().backward()
    numbers.append(compiling.counts.num_graphs)
    assert numbers == [1, 1, 2, 2, 2, 3]
    assert block.change.weight.grad is None
    assert block.layer.weight.grad is not None
    assert compiling.counts.num_blocks == 1
    assert compiling.counts.seconds > 0


@pytest.mark.parametrize("limit", ["recompile_limit", "accumulated_recompile_limit"])
def test_a_backward_pass_in_another_thread_compiles_as_many_sizes(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: autograd recomputes blocks in a thread of its own, which has torch's default settings."""
    monkeypatch.setattr(torch._dynamo.config._config[limit], "default", 2)
    compiling = compilation(Compilation)
    block, forward = compiled_block(compiling)
    plain = copy.deepcopy(block.layer), copy.deepcopy(block.change)

    def train(size: int) -> None:
        assert getattr(torch._dynamo.config, limit) == 2
        forward(torch.ones(size, 4)).sum().backward()

    num_graphs = []
    for size in (2, 3, 4, 5):
        thread = threading.Thread(target=train, args=(size,))
        thread.start()
        thread.join()
        num_graphs.append(compiling.counts.num_graphs)
    assert num_graphs == [1, 2, 3, 4]
    for size in (2, 3, 4, 5):
        (plain[0](torch.ones(size, 4)).relu() + plain[1](torch.ones(size, 4))).sum().backward()
    assert torch.allclose(block.change.weight.grad, plain[1].weight.grad)  # type: ignore[arg-type]


def test_compiled_code_does_not_depend_on_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's: whether padding pays differs from one time to the next, and so would what a pass saves."""
    seen: list[bool] = []

    def compiled(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(torch._inductor.config.shape_padding)
        return graph.forward

    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: compiled)
    block = torch.nn.Linear(2, 2)
    Compilation(time).compile_in_place([block])
    block(torch.ones(1, 2)).sum().backward()
    assert seen == [False]
    assert torch._inductor.config.shape_padding


def test_without_gradients_blocks_run_as_they_are() -> None:
    """So samples, validation and references never use code compiled for the trained model."""
    compiling = compilation(Compilation)
    block, forward = compiled_block(compiling)
    x = torch.randn(2, 4)
    forward(x).sum().backward()
    block.is_enabled = False
    with torch.no_grad():
        reference = forward(x)
    assert torch.equal(reference, block.layer(x).relu())
    assert compiling.counts.num_graphs == 1
    switched_off = forward(x)  # with gradients: compiled again
    assert torch.allclose(switched_off, reference)
    assert compiling.counts.num_graphs == 2
    block.is_enabled = True
    assert torch.allclose(forward(x), block.layer(x).relu() + block.change(x))


@pytest.mark.full
def test_a_reference_between_predictions_is_the_plain_one(tiny_sd: Path) -> None:
    family, adapters = with_lora(tiny_sd)
    parameters = {n: p for a in adapters for n, p in a.parameters().items()}
    loss = functools.partial(with_a_reference, adapters=adapters)
    plain = compiled_gradients(family, parameters, PartMemory("block"), loss)
    compiling = compilation()
    found = compiled_gradients(family, parameters, PartMemory("block", compilation=compiling), loss)
    assert compiling.counts.num_blocks == 2
    assert_close(plain, found, 1e-5)


FAILURES = {
    "InvalidCxxCompiler: No working C++ compiler found": "it needs a C++ compiler, and none was found",
    "Cannot find a working triton installation": "it needs a working Triton, which was not found",
    "something else\nwith more lines": "of an error: something else",
}


@pytest.mark.parametrize("mode", ["off", "block", "whole"])
@pytest.mark.parametrize("message", FAILURES)
def test_a_block_that_cannot_be_compiled_runs_as_it_is(
    mode: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(message)

    plain_block, plain = compiled_block(compilation(Compilation), mode=mode)
    with torch.no_grad():
        expected = plain(torch.ones(2, 4))
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: fail)
    compiling = compilation(Compilation)
    block, forward = compiled_block(compiling, mode=mode)
    result = forward(torch.ones(2, 4))
    result.sum().backward()
    assert torch.equal(result, expected)
    assert compiling.failure == FAILURES[message]
    assert compiling.counts.num_blocks == 0
    assert block.change.weight.grad is not None
    compiling.turn_off()
    assert torch.equal(forward(torch.ones(3, 4)), plain(torch.ones(3, 4))[:1].expand(3, 4))
    assert plain_block is not block


def test_an_error_of_the_block_itself_is_raised() -> None:
    compiling = compilation(Compilation)
    _, forward = compiled_block(compiling)
    forward(torch.ones(2, 4)).sum().backward()
    with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|must match"):
        forward(torch.ones(2, 5))


def test_names_of_weights_stay_and_a_new_setup_replaces_the_old_one(tiny_sd: Path) -> None:
    family, _ = trained(tiny_sd, "full")
    unet = family.parts["unet"].module
    names = list(unet.state_dict())
    for memory in (PartMemory("block", compilation=compilation()), PartMemory()):
        family.set_memory({"unet": memory}, train_device=CPU, temp_device=TEMP)
        assert list(unet.state_dict()) == names
    assert not any("forward" in m.__dict__ for m in unet.modules())


@pytest.fixture
def compiled_run(tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    def asked_for(config: Config, clock: object, *, measures: bool) -> Compilation | None:
        return compilation(One) if config.model.compile == "on" else None

    monkeypatch.setattr(loading, "compilation_of", asked_for)
    config = small_config(tmp_path, model=tiny_sd, images=draw_folder(tmp_path / "images", sizes=[(64, 64)] * 4))
    unet_only = {"unet": {"checkpointing": "block"}, "text_encoder": {"train": False}}
    return laid_over(config, {"model": {"compile": "on"}, "training": {"epochs": 2}, "parts": unet_only})


@pytest.mark.full
def test_a_run_reports_what_it_compiled_and_resumes_to_the_bit(compiled_run: Config) -> None:
    whole = run(compiled_run)
    first, *later = whole.of(BlocksCompiled)
    assert (first.num_blocks, first.num_graphs, first.num_recompilations) == (1, 1, 0)
    assert not later
    assert "Compiled 1 block: 1 graph in" in first.summary
    assert not whole.of(WarningRaised)
    half = run(laid_over(compiled_run, {"training": {"epochs": 1}}))
    resumed = run(compiled_run, resume_from=Path(half.finished.backup_path))
    assert_equal_tensors(resumed.weights, whole.weights)


def test_a_run_whose_blocks_cannot_be_compiled_says_so_and_goes_on(
    compiled_run: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: fail)
    ran = run(laid_over(compiled_run, {"training": {"epochs": 1}}))
    assert ran.finished.outcome == "finished"
    [warning] = ran.of(WarningRaised)
    assert warning.message == (
        "The denoiser could not be compiled, because it needs a C++ compiler, and none was found. The run continues "
        "without compiling; its results are the same."
    )
    plain = run(laid_over(compiled_run, {"training": {"epochs": 1}, "model": {"compile": "off"}}))
    assert_equal_tensors(ran.weights, plain.weights)


@pytest.mark.full
def test_a_run_measures_compiled_blocks_and_a_resumed_one_keeps_the_choice(
    compiled_run: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two plain and three compiled steps; the stopped run's backup is of a step before the choice."""
    for name, number in {"_PLAIN_STEPS": 2, "_WARM_UP_STEPS": 1, "_ENOUGH_STEPS": 2, "_ASSUMED_SECONDS": 0.0}.items():
        monkeypatch.setattr(compile_trial, name, number)
    monkeypatch.setattr(compile_trial, "may_pay", lambda *_: True)
    monkeypatch.setattr(compile_trial, "pays", lambda _: True)
    monkeypatch.setattr(loading, "measures_compiled_blocks", lambda *_: True)
    made: list[Compilation] = []

    def measured(config: Config, clock: object, *, measures: bool) -> Compilation:
        assert measures
        made.append(compilation(One))
        made[-1].turn_off()
        return made[-1]

    monkeypatch.setattr(loading, "compilation_of", measured)
    changes = {"model": {"compile": "auto"}, "training": {"epochs": 4}, "backup": {"every": {"n": 3, "unit": "step"}}}
    config = laid_over(compiled_run, changes)
    whole = run(config)
    [chosen] = [event for event in whole.of(SettingChosen) if event.path == "model.compile"]
    assert chosen.summary.startswith("The denoiser's blocks are compiled: a step takes ")
    [first] = whole.of(BlocksCompiled)  # not in the dry run
    assert first.num_graphs == 1
    assert made[0].is_on
    [backup] = [b for b in whole.of(BackupSaved) if b.step == 3]
    resumed = run(config, resume_from=Path(backup.path))
    assert made[1].is_on
    assert not [event for event in resumed.of(SettingChosen) if event.path == "model.compile"]
    assert_equal_tensors(resumed.weights, whole.weights)


@pytest.mark.full
@pytest.mark.parametrize(("compiled_seconds", "chosen"), [(12.0, "are compiled"), (24.0, "are not compiled")])
def test_a_run_chooses_by_the_seconds_that_it_measures(
    compiled_run: Config, monkeypatch: pytest.MonkeyPatch, compiled_seconds: float, chosen: str, tmp_path: Path
) -> None:
    """Each look at the clock takes 20 s, or another time while blocks are compiled; all else is as on a GPU."""
    monkeypatch.setattr(loading, "measures_compiled_blocks", lambda *_: True)
    now, made = [0.0], list[Compilation]()

    def seconds() -> float:
        now[0] += compiled_seconds if made and made[-1].is_on else 20.0
        return now[0]

    def measured(config: Config, clock: object, *, measures: bool) -> Compilation:
        made.append(compilation(One))
        made[-1].turn_off()
        return made[-1]

    monkeypatch.setattr(loading, "compilation_of", measured)
    config = laid_over(compiled_run, {"model": {"compile": "auto"}, "training": {"epochs": 15}})
    ran = run(config, clocks=Clocks(seconds=seconds))
    assert len(ran.of(StepFinished)) > 24
    [event] = [event for event in ran.of(SettingChosen) if event.path == "model.compile"]
    assert event.summary.startswith(f"The denoiser's blocks {chosen}: a step takes ")
    change = "40 % less" if compiled_seconds < 20 else "20 % more"
    assert change in event.summary
    assert made[-1].is_on == (chosen == "are compiled")
    [file] = tmp_path.glob("**/compile.json")
    choice = compile_trial.read_choice(file)
    assert choice is not None
    assert (choice.compiled_from, choice.is_compiled) == (12, made[-1].is_on)
    assert choice.chosen_at > 12 + 6, "of the first compiled step compiling is a part"


@pytest.mark.parametrize(
    ("changes", "device", "world_size"),
    [
        ({}, "cpu", 1),
        ({}, "cuda", 2),
        ({"model": {"compile": "off"}}, "cuda", 1),
        ({"model": {"compile": "on"}}, "cuda", 1),
        ({"general": {"deterministic": True}}, "cuda", 1),
    ],
)
def test_only_an_automatic_choice_on_one_gpu_is_measured(
    compiled_run: Config, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], device: str, world_size: int
) -> None:
    monkeypatch.setattr("trainer.run.automatic_choices.importlib.util.find_spec", lambda name: name)
    automatic = laid_over(compiled_run, {"model": {"compile": "auto"}})
    assert measures_compiled_blocks(automatic, Device("cuda:0"), 1)
    assert not measures_compiled_blocks(laid_over(automatic, changes), Device(f"{device}:0"), world_size)
    assert compilation_of(automatic, time) is None
    measuring = compilation_of(automatic, time, measures=True)
    assert measuring is not None
    assert not measuring.is_on


def test_debug_checks_run_without_compiling(compiled_run: Config) -> None:
    checked = laid_over(compiled_run, {"general": {"debug_checks": True}})
    assert compilation_of(checked, time) is None
    assert compilation_of(compiled_run, time) is not None
    assert [p.severity for p in problems_of(checked) if p.path == "model.compile"] == ["warning"]


def test_preflight_warns_without_a_compiler(compiled_run: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(problems_of_speed(compiled_run))
    monkeypatch.setattr("trainer.preflight.requirements.shutil.which", lambda name: None)
    [problem] = problems_of_speed(compiled_run)
    assert (problem.path, problem.severity) == ("model.compile", "warning")
    assert "needs a C++ compiler, which was not found" in problem.message


@pytest.mark.full
@pytest.mark.timeout(600)
def test_inductor_itself(tiny_sd: Path) -> None:
    family, parameters = trained(tiny_sd, "lora-dropout")
    compiling = compilation(backend=INDUCTOR)
    found = compiled_gradients(family, parameters, PartMemory("block", compilation=compiling))
    assert not compiling.failure
    assert compiling.counts.num_blocks == 2
    assert_close(plain_gradients(tiny_sd, "lora-dropout", predicted), found, 1e-4)
