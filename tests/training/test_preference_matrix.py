"""Every method that learns from rewards or preferences, under every way to save memory: exact gradients, all of them.

One of the failures that must be impossible is a run of online DPO or GRPO that trains nothing under gradient
checkpointing and only warns (trl#2671).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.loop_speed import run_setup
from modules.diffusion.flow_convention import flow_matching
from modules.families.protocol import PartMemory
from modules.families.registry import FAMILIES
from modules.optim.param_groups import named_parameters
from modules.system.devices import CPU, Device
from tests.builders.configs import family_of
from tests.builders.flow_models import FLOW_MODELS, VARIANTS
from tests.builders.matrix import full_cover, matrix
from tests.builders.preference import NAMES, NEEDED, SHORT, draw_both, preference_config, settings_of, spec_of
from tests.builders.runs import run
from trainer.events import Event, StepFinished
from trainer.run import training_run
from trainer.run.finish import PreparedRun
from trainer.run.setup import RunSetup
from trainer.step.loop import add_micro_batch

pytestmark = pytest.mark.usefixtures("one_thread")

Tensors = dict[str, torch.Tensor]

MEMORIES = {
    "block": PartMemory("block"),
    "whole": PartMemory("whole"),
    "offload": PartMemory("block", offload_activations=True),
}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_both(tmp_path_factory.mktemp("drawn"))


def test_every_method_has_short_settings() -> None:
    assert {settings["name"] for settings in SHORT.values()} == NEEDED


# ---- gradients


@dataclass(eq=False)
class PreparedRuns:
    """Runs that are ready for their first step, each with the gradients of that step without saving memory."""

    folder: Path
    drawn: Path
    _found: dict[tuple[str, str, str], tuple[PreparedRun, Tensors]] = field(default_factory=dict)

    def of(self, model: Path, trains: str, method: str) -> tuple[PreparedRun, Tensors]:
        """Return a run and its plain gradients. No weight moves, so that all rows can share it."""
        key = (model.name, trains, method)
        if key not in self._found:
            config = preference_config(
                self.folder / "-".join(key), model=model, drawn=self.drawn, method=method, training={"trains": trains}
            )
            prepared = training_run.prepare(run_setup(config))
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():  # LoRA's up matrix begins at zero, which would hide the gradient of the other
                for parameter in named_parameters(prepared.model.groups).values():
                    parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
            self._found[key] = prepared, gradients(prepared, PartMemory())
        return self._found[key]

    def close(self) -> None:
        """End them all."""
        for prepared, _ in self._found.values():
            prepared.close()


@pytest.fixture(scope="module")
def prepared_runs(tmp_path_factory: pytest.TempPathFactory, drawn: Path) -> Iterator[PreparedRuns]:
    runs = PreparedRuns(tmp_path_factory.mktemp("runs"), drawn)
    yield runs
    runs.close()


def gradients(prepared: PreparedRun, memory: PartMemory) -> Tensors:
    """Return the gradients of the first step, with a rollout of its own."""
    training, family = prepared.training, prepared.model.family
    family.set_memory(
        {g.part: memory for g in training.groups if g.part}, train_device=CPU, temp_device=Device("cpu:1")
    )
    method: Any = training.method
    method = replace(method)  # it has not sampled anything yet
    loaded = training.loader.batches(0, first_epoch_step=0, step=0)
    for batch in method.batches(loaded, training.context):
        loss = add_micro_batch(batch, method, training.stepper, training.context, training.precision)
        if loss.is_last_micro_batch:
            break
    found = {name: parameter.grad for name, parameter in named_parameters(training.groups).items()}
    training.stepper.discard()
    assert not [name for name, gradient in found.items() if gradient is None]
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def has_form(model: str, method: str) -> bool:
    """Whether a method trains a model."""
    return model in ("tiny_sd", "tiny_sdxl") or not spec_of(method).refusal(settings_of(method), flow_matching())


AXES = (["adapter", "full"], NAMES, list(MEMORIES))


@pytest.mark.daily(6)
@pytest.mark.parametrize(
    ("model", "trains", "method", "memory"),
    [
        *matrix(
            ["tiny_sd", "tiny_sdxl", *FLOW_MODELS], *AXES, possible=lambda model, _, method, __: has_form(model, method)
        ),
        *full_cover(list(VARIANTS), *AXES, possible=lambda model, _, method, __: has_form(model, method)),
    ],
)
def test_gradients_equal_the_plain_ones_bit_for_bit(
    request: pytest.FixtureRequest, prepared_runs: PreparedRuns, model: str, trains: str, method: str, memory: str
) -> None:
    prepared, plain = prepared_runs.of(request.getfixturevalue(model), trains, method)
    saved = gradients(prepared, MEMORIES[memory])
    assert saved.keys() == plain.keys()
    assert not [name for name in plain if not torch.equal(saved[name], plain[name])]
    assert all(gradient.isfinite().all() for gradient in plain.values())
    if trains == "adapter":
        assert not [name for name, gradient in plain.items() if not gradient.any()]


# ---- what moves, and what does not


def weights_of(prepared: PreparedRun) -> Tensors:
    parts = prepared.model.family.parts
    return {f"{p}.{n}": w.detach().clone() for p, part in parts.items() for n, w in part.module.named_parameters()}


def different(one: Tensors, other: Tensors) -> set[str]:
    """Return the names of weights with other bits; those of an encoder that left the memory are NaN."""
    return {name for name in one if not torch.equal(bits(one[name]), bits(other[name]))}


def bits(weight: torch.Tensor) -> torch.Tensor:
    return weight.reshape(-1).view(torch.uint8)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("method", "model", "trains", "memory"),
    [
        pytest.param(
            *row, marks=() if row[1:] == ("tiny_sd", "adapter", "block") else pytest.mark.full, id="-".join(row)
        )
        for row in [
            (method, model, trains, memory)
            for method in NAMES
            for model in ("tiny_sd", "tiny_sdxl", *FLOW_MODELS, *VARIANTS)
            for trains in ("adapter", "full")
            if has_form(model, method)
            for memory in ("block", "whole")
        ]
    ],
)
def test_all_that_is_trained_moves_and_a_text_encoder_stops_in_mid_run(
    request: pytest.FixtureRequest,
    drawn: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    model: str,
    trains: str,
    memory: str,
) -> None:
    """A checkpointed part without anything trained: "none of output has requires_grad=True" (OneTrainer#549)."""
    stop = {"stop_after": {"n": 2, "unit": "step"}}
    folder = request.getfixturevalue(model)
    spec = FAMILIES[family_of(folder)]
    encoders = {name: {"checkpointing": memory, **stop} for name in spec.names_of("text_encoder")}
    denoiser = spec.denoiser.name
    config = preference_config(
        tmp_path,
        model=folder,
        drawn=drawn,
        method=method,
        training={"trains": trains, "epochs": 4 // spec_of(method).steps_per_group(settings_of(method))},
        parts={denoiser: {"checkpointing": memory}, **encoders},
    )
    runs, states = [], []
    plain = training_run.prepare

    def prepare(setup: RunSetup) -> PreparedRun:
        runs.append(plain(setup))
        states.append(weights_of(runs[0]))
        return runs[0]

    def note(event: Event, send: Any) -> None:
        if isinstance(event, StepFinished):
            states.append(weights_of(runs[0]))

    monkeypatch.setattr(training_run, "prepare", prepare)
    steps = run(config, on_event=note).of(StepFinished)
    trained = {frozenset(s.training_parts) for s in steps[:2]}, {frozenset(s.training_parts) for s in steps[2:]}
    groups = {g.name for g in runs[0].model.groups}
    assert trained == ({frozenset(groups)}, {frozenset({denoiser})})
    names = set(named_parameters(runs[0].model.groups))
    before, _, middle, _, after = states
    assert different(before, middle) == names, "within two updates"
    assert different(middle, after) == {n for n in names if n.startswith(f"{denoiser}.")}
    assert different(before, after) == names, "a weight of the base model has changed"
