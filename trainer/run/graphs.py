"""The CUDA graphs of a run, if it records its steps, and what it reports about them."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from modules.config.schema import Config
from modules.system.devices import Device
from modules.system.problem import count
from trainer.events import Event, WarningRaised
from trainer.machine_events import SettingChosen
from trainer.preflight.graphs import records_steps
from trainer.run.machine import Machine
from trainer.run.model import LoadedModel
from trainer.step.graphs import CudaRecorder, Recorder, StepGraphs


def step_graphs(
    config: Config, machine: Machine, model: LoadedModel, emit: Callable[[Event], None]
) -> StepGraphs | None:
    """Return the graphs of a run; None if it records none."""
    device = machine.train_device
    if not records_steps(config, device.type, machine.ranks.rank.world_size):
        return None
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
            emit(SettingChosen("training.cuda_graphs", words))

    graphs = StepGraphs(recorder_of(device), [*denoisers, *model.trained_modules], report=report)
    if any(isinstance(layer, nn.Dropout) and layer.p > 0 for module in denoisers for layer in module.modules()):
        graphs.failure = "the model has layers with dropout"
        report(graphs)
    return graphs


def recorder_of(device: Device) -> Recorder:
    """Return what records on a device."""
    return CudaRecorder(device)
