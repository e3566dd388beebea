"""Putting on a model what a run trains: its adapters, or the weights of whole parts; each part's training unit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch

from modules.adapters.kept_layers import attach_kept
from modules.adapters.protocol import Adapter, kind_of
from modules.adapters.ranks import layers_with_rank, require_used_ranks
from modules.adapters.registry import ADAPTERS
from modules.adapters.settings import AdapterSettings, adapter_layers
from modules.adapters.start import Start, divided, read_content, write_content
from modules.adapters.stored import read_adapter
from modules.adapters.targets import target_layers
from modules.config.schema import Config
from modules.config.sections.model import Part as PartSettings
from modules.families.protocol import ModelFamily, Part
from modules.optim.param_groups import TrainGroup
from modules.settings.layer_filter import LayerFilter, select_layers
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.seeds import derive_seed

PartOf = Callable[[str], PartSettings]
Parameters = dict[str, torch.nn.Parameter]


def start_of(config: Config, family: ModelFamily, start_copy: Path | None) -> Start | None:
    """Return what the adapters of a run start from; None for new ones."""
    settings = config.adapter
    if not settings.start_from.strip():
        return None
    trainable = ADAPTERS[settings.name].trainable_with(settings)
    assert trainable is not None  # only an adapter that is not supported yet has none
    if start_copy is not None and start_copy.exists():
        content = read_content(start_copy)
    else:
        modules = {name: part.module for name, part in family.parts.items()}
        content = read_adapter(from_root(settings.start_from.strip()), family.lora_naming, modules)
        if start_copy is not None:
            write_content(start_copy, content)
    targets = _targets(family, settings, config.part)
    return divided(content, targets, trainable, keeps=settings.other_layers == "keep")


def attach_adapters(
    family: ModelFamily, settings: AdapterSettings, part_of: PartOf, start: Start | None, *, run_seed: int
) -> list[Adapter]:
    """Put what a run starts from and its adapters on the model, and return the adapters."""
    kind = kind_of(ADAPTERS[settings.name])
    adapters: list[Adapter] = []
    if start is not None:
        attach_kept({name: part.module for name, part in family.parts.items()}, start.kept, where=start.where)
    for name, targets in (_targets(family, settings, part_of) if start is None else start.targets).items():
        part = family.parts[name]
        if not targets:
            raise DarkroomError(
                f"{part.spec.label} is set to be trained, but {start.where if start else ''} has a change of another "
                "kind on each of its layers.",
                advice='Choose "Leave out" under Other layers, other layers, or another adapter type.',
            )
        seed = derive_seed(run_seed, f"adapter {name}")
        layers = start.trained[name] if start is not None else ()
        where = start.where if start is not None else ""
        adapters.append(kind.attach(name, part.module, targets, settings, seed=seed, start=layers, where=where))
        part.module.train()
    return adapters


def train_whole_parts(family: ModelFamily, part_of: PartOf, layers: LayerFilter) -> dict[str, Parameters]:
    """Enable gradients on the trained weights of each trained part, and return them: those that a gradient can reach,
    of the denoiser those of `layers`.
    """
    parameters = {}
    for name, part in family.parts.items():
        if part.spec.trainable and part_of(name).train:
            own = part.module.state_dict().keys()  # without the rows of embeddings
            paths = {n: n.rpartition(".")[0] for n, _ in part.module.named_parameters() if n in own}
            trained = dict.fromkeys(path for path in paths.values() if part.reaches(path))
            if part.spec.role == "denoiser":
                trained = dict.fromkeys(select_layers(layers, trained, page="Training"))
            reached = {n: p for n, p in part.module.named_parameters() if paths.get(n) in trained}
            for parameter in reached.values():
                parameter.requires_grad_(True)
            part.module.train()
            parameters[name] = {f"{name}.{n}": p for n, p in reached.items()}
    return parameters


def rate_ratios(config: Config, parameters: Collection[str]) -> dict[str, float]:
    """Return the ratios of the learning rates of an adapter's weights to that of their part, where they are not 1."""
    if config.training.trains != "adapter":
        return {}
    return ADAPTERS[config.adapter.name].rate_ratios(config.adapter, parameters)


def unit_of(
    part: Part,
    parameters: Parameters,
    settings: PartSettings,
    learning_rate: float,
    factor: float,
    rate_ratios: Mapping[str, float],
    fixed: Callable[[], Mapping[str, torch.Tensor]] = dict,
) -> TrainGroup:
    """Return the training unit of a part or its adapter, with the part's name and settings.

    `factor` is that of the learning rate scaler; `fixed` as in `TrainGroup`.
    """
    own = settings.learning_rate
    return TrainGroup(
        part.spec.name,
        parameters,
        (learning_rate if own is None else own) * factor,
        module=part.module,
        part=part.spec.name,
        label=part.spec.label,
        stop_after=settings.stop_after,
        rate_ratios=rate_ratios,
        fixed=fixed,
    )


def _targets(family: ModelFamily, settings: AdapterSettings, part_of: PartOf) -> dict[str, list[str]]:
    """Return the layers of each trained part that get an adapter. Raises DarkroomError for a part without any."""
    found, candidates = {}, list[tuple[str, str]]()
    for name, part in family.parts.items():
        if not part.spec.trainable or not part_of(name).train:
            continue
        layers = target_layers(part.module, part.spec.role, layers=adapter_layers(settings), reaches=part.reaches)
        candidates += [(name, path) for path in layers]
        keeps = layers_with_rank(settings, name)
        found[name] = layers if keeps is None else [path for path in layers if keeps(path)]
        if not found[name]:
            raise DarkroomError(
                f"{part.spec.label} is set to be trained, but none of its layers can be trained with these settings.",
                advice="Lower clip skip, choose other layers, or switch off the training of this part.",
            )
    require_used_ranks(settings, candidates)
    return found
