"""Checks of the adapter file that a run starts from: its kind, and the layers that the run trains and keeps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from modules.adapters.registry import ADAPTERS
from modules.adapters.settings import AdapterSection, decomposition_axis
from modules.adapters.spec import Shape, Trainable
from modules.adapters.start_notes import OtherLayers, rank_note
from modules.adapters.stored_header import (
    Place,
    StoredHeader,
    header_of_copy,
    match_header,
    reason_if_broken,
    reason_to_refuse,
)
from modules.config.schema import Config
from modules.config.usage import adapter_form
from modules.estimate.architecture import architecture_of
from modules.estimate.passes import Passes, Plans, count
from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.identify import identify
from modules.families.kinds.registry import serves_as
from modules.families.registry import files_of
from modules.formats.adapter_names import DOWN, LORA_FACTORS, UP, dora_axis, layers_in
from modules.formats.adapter_targets import AdapterTargets, fits
from modules.formats.adapter_types import DORA_SCALE, can_act
from modules.formats.checkpoint_header import read_checkpoint_header
from modules.formats.fused_layers import UNDIVIDED_ADVICE, undivided_message
from modules.formats.headers import UnreadableFileError
from modules.memory.part_plan import AdapterPlan, PartPlan
from modules.system.paths import from_root
from modules.system.problem import Problem, shorten, with_article
from modules.system.problem import count as count_of
from trainer.preflight.passes import MALFORMED_CONFIG

_PATH = "adapter.start_from"


@dataclass(frozen=True, slots=True)
class StartHeader:
    """The header of a run's start file, divided into the layers that the run trains and the rest.

    `trained` are the layers that the run continues to train, `kept` those it keeps as they are.
    """

    where: str
    trained: Mapping[Place, Mapping[str, Shape]]
    rest: Mapping[Place, Mapping[str, Shape]]
    others: tuple[str, ...]
    copies: tuple[str, ...]
    is_kept: bool


def problems_of_start(config: Config, *, has_copy: bool | None) -> Iterator[Problem]:
    """Yield the problems of the file that the adapter starts from, or its kind.

    `has_copy` is whether a run that is being resumed has its own copy of it; the file is then not read. None for a new
    run.
    """
    name = config.adapter.start_from.strip()
    if not name or config.training.trains != "adapter" or has_copy:
        return
    path = from_root(name)
    file_kind = identify(path)
    shown = shorten(name, max_chars=200)
    if file_kind.facts.get("defect") == "missing":
        advice = "Choose a LoRA file, or leave it empty for a new one."
        if has_copy is not None:  # the setting cannot change
            advice = "Put the file back: the run started from it and has no copy of its own."
        yield Problem(_PATH, f"{shown} does not exist.", advice=advice)
    elif refusal := _refusal(config, path, file_kind, shown):
        yield refusal
    else:
        size = f" It has {count_of(int(file_kind.facts['layers']), 'layer')}." if "layers" in file_kind.facts else ""
        yield Problem(_PATH, f"The adapter continues {Path(name).name}. {file_kind.sentence}{size}", "info")


def _refusal(config: Config, path: Path, file_kind: FileKind, shown: str) -> Problem | None:
    """Return why a run cannot start from a file that exists; None where it can."""
    spec = ADAPTERS[config.adapter.name]
    if not serves_as(file_kind, "start of an adapter"):
        message = file_kind.explain(f"{shown} is not a LoRA.")
        return Problem(_PATH, message, advice="Choose a LoRA file, or leave it empty for a new one.")
    targets = base_targets(config)
    if file_kind.family not in ("", config.model.family.name) and not _fits_base_model(targets, path):
        message = f"{shown} is for another model family. {file_kind.sentence}"
        return Problem(_PATH, message, advice="Choose a LoRA of the base model's family.")
    stored = match_header(read_checkpoint_header(path), targets) if targets is not None else None
    message, advice = ("", "")
    if stored:
        message, advice = reason_to_refuse(shown, len(stored.layers), stored.unplaced, file_kind.sentence)
    if stored and stored.undivided:
        matrix, why = next(iter(stored.undivided.items()))
        return Problem(_PATH, undivided_message(shown, matrix, why), advice=UNDIVIDED_ADVICE)
    broken, again = reason_if_broken(shown, stored.layers) if stored else ("", "")
    if not broken and (damage := file_kind.facts.get("damage")):
        broken, again = f"{shown} is damaged {damage}.", "Choose another file, or download it again."
    if broken and not message:  # before its type, which can look different then
        return Problem(_PATH, broken, advice=again)
    trainable = spec.trainable_with(config.adapter)
    if trainable is not None and not _has_trainable(path, trainable):
        return _of_another_type(shown, config.adapter, file_kind)
    return Problem(_PATH, message, advice=advice) if message else None


def notes_on_start(config: Config, start: StartHeader, passes: Passes, plans: Plans) -> Iterator[Problem]:
    """Yield which ranks a run trains with, and which layers of its start file it does not train."""
    rank = getattr(config.adapter, "rank", None)
    if rank is not None:
        ranks = [shapes[DOWN][0] for shapes in start.trained.values() if DOWN in shapes]
        trained = {(part, path) for part in plans for path in trained_layers(passes, plans, part)}
        if note := rank_note(start.where, ranks, rank, num_new=len(trained - start.trained.keys())):
            yield Problem("adapter.rank", note, "info")
    message, advice = _other_layers(config, start).note()
    if message:
        yield Problem("adapter.other_layers", message, "info", advice)
    yield from _axis_of_start(config, start)


def _axis_of_start(config: Config, start: StartHeader) -> Iterator[Problem]:
    """Yield a note if layers of the result keep another axis of DoRA than the settings."""
    axes = {dora_axis(shapes[DORA_SCALE]) for shapes in start.trained.values() if DORA_SCALE in shapes}
    others = axes - {decomposition_axis(config.adapter)}
    if "outputs" in others and adapter_form(config) != "diffusers":
        yield Problem(
            _PATH,
            f"{start.where} has DoRA on the output axis, which its layers keep. ComfyUI, Forge and A1111 compute it "
            "with other norms than in training: images made there will differ from the samples.",
            "warning",
            "Use the result in other programs, or train a new adapter.",
        )
    if "inputs" in others and adapter_form(config) == "diffusers":
        yield Problem(
            _PATH,
            f"{start.where} has DoRA on the input axis, which its layers keep. The diffusers format cannot hold it.",
            advice="Choose the kohya format.",
        )


def trained_layers(passes: Passes, plans: Plans, part: str) -> frozenset[str]:
    """Return the layers of a part that a run trains an adapter on."""
    return frozenset(path for path in passes.layers(part) if plans[part].adapter_on(path) is not None)


def start_header(config: Config, passes: Passes, plans: Plans, *, start_copy: Path | None = None) -> StartHeader | None:
    """Return the header of the file that a run starts from, divided as the run divides it.

    `start_copy` is the own copy of a run that is being resumed: it is read instead of the file, which may have changed
    since. None without such a file, or where it cannot be read or a run refuses it.
    """
    name, trainable = config.adapter.start_from.strip(), ADAPTERS[config.adapter.name].trainable_with(config.adapter)
    if not name or config.training.trains != "adapter" or trainable is None:
        return None
    targets = base_targets(config)
    if targets is None:
        return None
    header = _named_header(config, name, targets) if start_copy is None else _copied_header(start_copy, targets)
    if header is None:
        return None
    where, stored = header
    trained = {part: trained_layers(passes, plans, part) for part in plans}
    return _divide_layers(where, stored, trained, trainable, is_kept=config.adapter.other_layers == "keep")


def _named_header(config: Config, name: str, targets: AdapterTargets) -> tuple[str, StoredHeader] | None:
    path = from_root(name)
    file_kind = identify(path)
    try:
        if _refusal(config, path, file_kind, name) is not None:
            return None
        return path.name, match_header(read_checkpoint_header(path), targets)
    except (UnreadableFileError, OSError):
        return None


def _copied_header(path: Path, targets: AdapterTargets) -> tuple[str, StoredHeader] | None:
    try:
        return header_of_copy(read_checkpoint_header(path), targets)
    except (UnreadableFileError, OSError, ValueError, KeyError, TypeError):  # the run reports a damaged copy
        return None


def plans_with_start(plans: Plans, start: StartHeader | None, settings: AdapterSection) -> dict[str, PartPlan]:
    """Return plans whose adapters have the shapes of the start file on the layers that they continue, and the layers
    that are kept.
    """
    settings_as = ADAPTERS[settings.name].settings_as
    if start is None or settings_as is None:
        return dict(plans)
    trained = {place: settings_as(settings, shapes) for place, shapes in start.trained.items()}
    with_start = {}
    for name, plan in plans.items():
        kept = [s for (part, _), shapes in start.rest.items() if part == name for s in shapes.values()]
        adapter = plan.adapter
        if adapter is not None and any(part == name for part, _ in trained):
            adapter = replace(adapter, settings_at=partial(_settings_at, trained, adapter, name))
        with_start[name] = replace(plan, adapter=adapter, num_kept=count(kept) if start.is_kept else 0)
    return with_start


def _settings_at(trained: Mapping[Place, Any], adapter: AdapterPlan, part: str, path: str, weight: Shape) -> Any:
    if (part, path) in trained:
        return trained[part, path]
    return adapter.settings if adapter.settings_at is None else adapter.settings_at(path, weight)


def _divide_layers(
    where: str, stored: StoredHeader, trained: Mapping[str, Collection[str]], trainable: Trainable, *, is_kept: bool
) -> StartHeader:
    continued: dict[Place, Mapping[str, Shape]] = {}
    rest: dict[Place, Mapping[str, Shape]] = {}
    for place, shapes in stored.layers.items():
        names = trainable(shapes) if place[1] in trained.get(place[0], ()) else frozenset()
        if names:
            continued[place] = {name: shape for name, shape in shapes.items() if name in names}
        if others := {name: shape for name, shape in shapes.items() if name not in names}:
            rest[place] = others
    return StartHeader(where, continued, rest, stored.others, stored.copies, is_kept)


def _other_layers(config: Config, start: StartHeader) -> OtherLayers:
    labels = config.family.part_labels
    paths: dict[str, tuple[str, ...]] = {}
    for part, path in start.rest:
        paths[labels[part]] = (*paths.get(labels[part], ()), path)
    holds_all = adapter_form(config) != "diffusers"
    lost = [f"{part}.{path}" for (part, path), shapes in start.rest.items() if not _fits_diffusers(shapes)]
    return OtherLayers(
        start.where,
        is_kept=start.is_kept,
        trains_any=bool(start.trained),
        paths=paths,
        inactive=tuple(f"{part}.{path}" for (part, path), shapes in start.rest.items() if not can_act(shapes)),
        others=start.others,
        lost=() if holds_all else (*lost, *start.others),
        copies=start.copies,
    )


def _fits_diffusers(shapes: Mapping[str, Shape]) -> bool:
    return {DOWN, UP} <= shapes.keys() <= LORA_FACTORS - {DORA_SCALE}


def base_targets(config: Config) -> AdapterTargets | None:
    """Return all layers of the base model that a file can change; None where its configs are not known, or not valid.

    All models of a family name them alike.
    """
    architecture = architecture_of(config.model.base_model, config.model.family.name, config.model.variant)
    if architecture is None:
        return None
    try:
        return files_of(config.family.name).models[0].adapter_targets(architecture.configs)
    except MALFORMED_CONFIG:  # the check of the model reports it
        return None


def _fits_base_model(targets: AdapterTargets | None, path: Path) -> bool:
    """Return whether most layers of a file are layers of the base model, of its shapes.

    A file of a size that was never published is hard to tell from its names; the base model itself decides.
    """
    if targets is None:
        return False
    layers = layers_in(read_checkpoint_header(path).shapes)
    candidates = ((targets.find(layer, shapes), shapes) for layer, shapes in layers.items())
    fitting = sum(target is not None and fits(shapes, target.weight) for target, shapes in candidates)
    return fitting * 2 > len(layers)


def _has_trainable(path: Path, trainable: Trainable) -> bool:
    """Return whether any layer of a file is of a kind that the adapter continues to train."""
    return any(trainable(shapes) for shapes in layers_in(read_checkpoint_header(path).shapes).values())


def _of_another_type(shown: str, settings: AdapterSection, file_kind: FileKind) -> Problem:
    label, kind = ADAPTERS[settings.name].label, file_kind.facts.get("adapter", "")
    if kind == f"DoRA ({label})":
        return Problem(_PATH, f"{shown} has DoRA magnitudes, which this run does not train.", advice="Switch DoRA on.")
    spec = next((s for s in ADAPTERS.values() if s.label == kind), None)
    advice = f"Choose {with_article(label)} file"
    advice += f", or set the adapter type to {kind}." if spec is not None else "."
    message = f"{shown} is not {with_article(label)}, the adapter type of this run. {file_kind.sentence}"
    return Problem(_PATH, message, advice=advice)
