"""The CUDA graphs of a run, if it records its steps, and what it reports about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from modules.config.schema import Config
from modules.optim.param_groups import TrainGroup
from modules.optim.registry import optimizer_spec
from modules.optim.spec import OptimizerSettings
from modules.system.devices import Device
from modules.system.problem import count
from trainer.events import Event, WarningRaised
from trainer.machine_events import SettingChosen
from trainer.preflight.graphs import records_steps
from trainer.run.machine import Machine
from trainer.run.model import LoadedModel
from trainer.step.graphs import CudaRecorder, Recorder, StepGraphs
from trainer.step.stepper import Stepper
from trainer.step.update_graph import UpdateGraph


def step_graphs(
    config: Config, machine: Machine, model: LoadedModel, stepper: Stepper, emit: Callable[[Event], None]
) -> StepGraphs | None:
    """Return the graphs of a run; None if it records none. The stepper gets the graph of its updates.

    The stepper must have its state already.
    """
    device = machine.train_device
    if not records_steps(config, device.type, machine.ranks.rank.world_size):
        return None
    because = why_not_updated(config.training.optimizer, model.groups, stepper)
    denoisers = [model.family.parts[name].module for name in config.family.names_of("denoiser")]

    def report(graphs: StepGraphs) -> None:
        if graphs.failure:
            emit(
                WarningRaised(
                    f"The steps could not be recorded as CUDA graphs: {graphs.failure}. The run continues without; its "
                    "results are the same.",
                    "Switch off CUDA graphs.",
                )
            )
        elif graphs.num_graphs == 1:
            words = f"The steps of {count(graphs.num_graphs, 'size')} are recorded as CUDA graphs, further ones follow."
            words += f" The optimizer is not, because {because}." if because else ""
            emit(SettingChosen("training.cuda_graphs", words))

    def report_update(update: UpdateGraph) -> None:
        emit(
            WarningRaised(
                f"The optimizer's step could not be recorded as a CUDA graph: {update.failure}. It runs after the "
                "recorded passes; its results are the same."
            )
        )

    graphs = StepGraphs(recorder_of(device), [*denoisers, *model.trained_modules], report=report)
    if any(isinstance(layer, nn.Dropout) and layer.p > 0 for module in denoisers for layer in module.modules()):
        graphs.failure = "the model has layers with dropout"
        report(graphs)
    elif not because:
        stepper.update_graph = UpdateGraph(graphs, model.groups, stepper.optimizer, device.torch, report=report_update)
    return graphs


def why_not_updated(settings: OptimizerSettings, groups: Sequence[TrainGroup], stepper: Stepper) -> str:
    """Return why the updates of a run cannot be recorded, to follow "because"; empty if they can."""
    spec = optimizer_spec(settings)
    if not spec.skips_on_device(settings):
        return f"{spec.label}, as it is set, needs the computer to know whether a step is skipped"
    if stepper.after_update is not None:
        return "the norms of weights are limited after each step"
    if any(m.rounding == "stochastic" for g in groups for m in g.master_weights.values()):
        return "weights are rounded at random"
    return ""


def recorder_of(device: Device) -> Recorder:
    """Return what records on a device."""
    return CudaRecorder(device)
