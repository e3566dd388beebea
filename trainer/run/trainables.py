"""The trainable weights of a run: adapters, whole parts, or the VAE, and the training unit of each part."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch

from modules.adapters.kept_layers import attach_kept
from modules.adapters.protocol import Adapter, kind_of, target_layers
from modules.adapters.ranks import layers_with_rank, require_used_ranks
from modules.adapters.registry import ADAPTERS
from modules.adapters.settings import AdapterSection, adapter_layers
from modules.adapters.stack import read_adapter
from modules.adapters.start import Start, divide_content, read_content, write_content
from modules.config.schema import Config
from modules.config.sections.model import Part as PartSettings
from modules.config.usage import trained_parts
from modules.families.protocol import ModelFamily, Part
from modules.optim.param_groups import TrainGroup
from modules.settings.layer_filter import LayerFilter, select_layers
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.seeds import derive_seed

PartOf = Callable[[str], PartSettings]
Parameters = dict[str, torch.nn.Parameter]
_DECODER = ("decoder.", "post_quant_conv.")


def start_of(config: Config, family: ModelFamily, start_copy: Path | None) -> Start | None:
    """Return the start of a run's adapters from a file; None for new adapters."""
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
    targets = _targets(family, settings, {p.name for p in trained_parts(config)})
    return divide_content(content, targets, trainable, keeps=settings.other_layers == "keep")


def attach_adapters(
    family: ModelFamily, settings: AdapterSection, trained: Collection[str], start: Start | None, *, run_seed: int
) -> list[Adapter]:
    """Attach the layers that a run starts from and keeps, and its own adapters, to the model; return the adapters.

    `trained` are the names of the trained parts.
    """
    kind = kind_of(ADAPTERS[settings.name])
    adapters: list[Adapter] = []
    if start is not None:
        attach_kept({name: part.module for name, part in family.parts.items()}, start.kept, where=start.where)
    for name, targets in (_targets(family, settings, trained) if start is None else start.targets).items():
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


def train_whole_parts(
    family: ModelFamily, trained_names: Collection[str], layers: LayerFilter
) -> dict[str, Parameters]:
    """Enable gradients on the weights of each trained part that a gradient can reach, and return them.

    In the denoiser only the weights of `layers` are trained.
    """
    parameters = {}
    for name, part in family.parts.items():
        if name in trained_names:
            stored = part.module.state_dict().keys()  # without the rows of embeddings
            paths = {n: n.rpartition(".")[0] for n, _ in part.module.named_parameters() if n in stored}
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
    """Return the learning rates of an adapter's weights as ratios of their part's rate, except ratios of 1."""
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

    `factor` comes from the learning rate scaler; `fixed` is as in `TrainGroup`.
    """
    rate = learning_rate if settings.learning_rate is None else settings.learning_rate
    return TrainGroup(
        part.spec.name,
        parameters,
        rate * factor,
        module=part.module,
        part=part.spec.name,
        label=part.spec.label,
        stop_after=settings.stop_after,
        rate_ratios=rate_ratios,
        fixed=fixed,
    )


def _targets(family: ModelFamily, settings: AdapterSection, trained: Collection[str]) -> dict[str, list[str]]:
    """Return the layers of each trained part that get an adapter. Raises DarkroomError for a part without any."""
    targets, candidates = {}, list[tuple[str, str]]()
    chosen = adapter_layers(settings, family.spec.denoiser.model.layers)
    for name, part in family.parts.items():
        if name not in trained:
            continue
        layers = target_layers(part.module, part.spec.role, layers=chosen, reaches=part.reaches)
        candidates += [(name, path) for path in layers]
        keeps = layers_with_rank(settings, name)
        targets[name] = layers if keeps is None else [path for path in layers if keeps(path)]
        if not targets[name]:
            raise DarkroomError(
                f"{part.spec.label} is set to be trained, but none of its layers can be trained with these settings.",
                advice="Lower clip skip, choose other layers, or switch off the training of this part.",
            )
    require_used_ranks(settings, candidates)
    return targets


def train_autoencoder(family: ModelFamily, config: Config) -> dict[str, dict[str, torch.nn.Parameter]]:
    """Enable gradients on the trained weights of the VAE, and return them by part and full name."""
    parameters = {}
    for part in trained_parts(config):
        module = family.parts[part.name].module
        named = dict(module.named_parameters())
        if config.training.vae.decoder_only:
            named = {name: p for name, p in named.items() if name.startswith(_DECODER)}
        for parameter in named.values():
            parameter.requires_grad_(True)
        module.train()
        parameters[part.name] = {f"{part.name}.{name}": p for name, p in named.items()}
    return parameters
