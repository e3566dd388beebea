"""Building the stepper, which updates the weights, the evaluation, which only uses them, and the graphs of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from modules.adapters.protocol import Adapter, LowRankAdapter
from modules.config.schema import Config
from modules.config.sections.training import Ema as EmaSettings
from modules.config.sections.training import Training
from modules.optim.build import build_optimizer
from modules.optim.ema import Ema
from modules.optim.param_groups import TrainGroup, exact_parameters, named_parameters
from modules.optim.registry import optimizer_spec
from modules.optim.schedule_registry import learning_rate_factor
from modules.optim.spec import OptimizerSettings
from modules.optim.updates.weight_norms import LoraWeights, NormLimit, RowNorms
from modules.system.devices import Device
from modules.system.problem import count
from modules.system.seeds import derive_seed
from trainer.events import Event, WarningRaised
from trainer.machine_events import SettingChosen
from trainer.preflight.graphs import records_steps
from trainer.run.machine import Machine
from trainer.run.model import LoadedModel
from trainer.step.evaluation import Evaluation
from trainer.step.gradient_sums import Reduction
from trainer.step.graphs import CudaRecorder, Recorder, StepGraphs
from trainer.step.stepper import Stepper
from trainer.step.update_graph import UpdateGraph

AfterUpdate = Callable[[], Mapping[str, float]]
"""Changes weights after an update, and returns metrics."""


def build_stepper(
    training: Training,
    groups: Sequence[TrainGroup],
    machine: Machine,
    *,
    run_seed: int,
    total_steps: int,
    is_fused: bool,
    adapters: Sequence[Adapter] = (),
    max_norm: float | None = None,
    kept_norms: RowNorms | None = None,
    reduction: Reduction = Reduction(),  # noqa: B008 - frozen
) -> Stepper:
    """Return the stepper of parameter groups. The trained parts must already be on the training device.

    With `is_fused` weights are updated in the backward pass. `max_norm` limits the norm of each layer of the adapters;
    `kept_norms` restores the norms of embeddings. `reduction` is how several processes sum their gradients.
    """
    for group in groups:
        group.master_weight(training.low_precision_updates)
    schedule = training.schedule
    weights = named_parameters(groups)
    changes = [] if max_norm is None else [NormLimit(lora_weights(adapters, groups), max_norm).apply]
    changes += [] if kept_norms is None else [kept_norms.apply]
    return Stepper(
        groups,
        build_optimizer(groups, training.optimizer),
        scaler=machine.precision.make_scaler(),
        clip_grad_norm=training.clip_grad_norm,
        rate_factor=lambda step: learning_rate_factor(
            schedule,
            step=step,
            total_steps=total_steps,
            epochs=training.epochs,
            learning_rate=training.learning_rate,
        ),
        ema=_ema(training.ema, groups, machine),
        rounding_generators=lambda step, name: _rounding_generators(run_seed, step, name, weights[name].device),
        is_fused=is_fused,
        after_update=_in_turn(changes),
        effective_rate=optimizer_spec(training.optimizer).effective_rate,
        ranks=machine.ranks,
        reduction=reduction,
    )


def _in_turn(changes: Sequence[AfterUpdate]) -> AfterUpdate | None:
    """Return a function that makes changes of the weights after a step one after the other; None without any."""
    return (lambda: {n: value for change in changes for n, value in change().items()}) if changes else None


def lora_weights(adapters: Sequence[Adapter], groups: Sequence[TrainGroup]) -> list[LoraWeights]:
    """Return the exact weights of LoRA layers. The groups must have their master weights already.

    Raises ValueError for an adapter that is not a LoRA.
    """
    values = exact_parameters(groups)
    owners = {name: group for group in groups for name in group.parameters}
    weights = []
    for adapter in adapters:
        if not isinstance(adapter, LowRankAdapter):
            raise ValueError(f"the adapter of {adapter.part} is not a LoRA")
        products = adapter.products()
        weights += [LoraWeights(owners[p.down], values[p.down], values[p.up], p.scale) for p in products]
    return weights


def evaluation_of(model: LoadedModel, stepper: Stepper) -> Evaluation:
    """Return the evaluation mode of a model: with its EMA weights and without dropout."""
    return Evaluation(
        model.trained_modules, stepper.ema, stepper.optimizer, model.groups, tuple(model.sharded.values())
    )


def _ema(settings: EmaSettings, groups: Sequence[TrainGroup], machine: Machine) -> Ema | None:
    if settings.mode == "off":
        return None
    return Ema(
        named_parameters(groups),
        decay=settings.decay,
        update_every_steps=settings.update_every_steps,
        device=machine.train_device if settings.mode == "train_device" else machine.temp_device,
        exact=lambda: exact_parameters(groups),
    )


def _rounding_generators(run_seed: int, step: int, name: str, device: torch.device) -> torch.Generator:
    # On the weight's device, because it draws one number per element. One generator per weight, because weights are
    # updated in any order.
    return torch.Generator(device).manual_seed(derive_seed(run_seed, f"rounding {name}", step))


# The CUDA graphs of a run, if it records its steps, and its messages about them.


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
    """Return the recorder of CUDA graphs on a device."""
    return CudaRecorder(device)
