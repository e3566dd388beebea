"""Checks of a base model before it is loaded: that it exists, is complete, and is of the family."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from modules.config.schema import Config
from modules.estimate.architecture import architecture_of
from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.identify import identify
from modules.families.registry import FAMILIES, files_of, published_model
from modules.families.spec import BASE_VARIANT, VARIANT_LABELS, FamilySpec
from modules.formats.float8_scales import ADVICE
from modules.formats.repository import INDEX, THREE_WAYS, index_file
from modules.settings.edit import get_path, live_records, replace_value
from modules.system.paths import from_root
from modules.system.problem import Problem, shorten, with_article
from trainer.preflight.model_files import (
    downloaded_folder,
    is_repository,
    kind_of,
    parts_with_files,
    successor_of,
    why_incomplete,
)


def kind_of_model(config: Config) -> FileKind | None:
    """Return the kind of the base model, from headers alone; None if it is not on this disk.

    A repository is looked up among those that were downloaded before.
    """
    name = config.model.base_model.strip()
    place = from_root(name)
    if not name or not kind_of(place):
        downloaded = downloaded_folder(config)
        return None if downloaded is None else identify(downloaded)
    return identify(place)


def without_lacking_parts(config: Config, file_kind: FileKind | None) -> Config:
    """Return the config without the optional parts that its base model lacks and for which it has no file."""
    if file_kind is None or file_kind.family != config.model.family.name:
        return config
    optional = {part.name for part in config.family.parts if part.optional}
    for name in sorted(optional & file_kind.without - parts_with_files(config)):
        config = replace_value(config, f"parts.{name}.include", False)
    return config


def problems_of_model(config: Config, file_kind: FileKind | None) -> Iterator[Problem]:
    """Yield the problems of the base model, and of the files that the settings of its family name."""
    for problem in (*_base_model(config, file_kind), *_problems_of_text_widths(config, file_kind)):
        is_chosen = problem.path == "model.base_model" and not problem.remedy
        yield replace(problem, remedy="base_model") if is_chosen else problem
    yield from _places_in_family(config)


def _places_in_family(config: Config) -> Iterator[Problem]:
    """Yield an error for each model or file in the settings of the family that does not exist."""
    for record in live_records(config):
        kind = record.setting.path_kind
        if not record.path.startswith("model.family.") or kind not in ("model", "file"):
            continue
        name = str(get_path(config, record.path)).strip()
        if name and not kind_of(from_root(name)) and not (kind == "model" and is_repository(name)):
            message = f"{record.setting.label}: {shorten(name, max_chars=200)} does not exist."
            yield Problem(record.path, message, advice="Choose one that exists, or reset the field.")


def _base_model(config: Config, file_kind: FileKind | None) -> Iterator[Problem]:
    name = config.model.base_model.strip()
    place = from_root(name)
    spec = config.family
    kind = kind_of(place)
    if kind == "folder" and name:
        yield from _diffusers_folder(place, name, spec, elsewhere=parts_with_files(config))
        yield from _variant(file_kind, name, config.model.variant, spec)
    elif kind == "file" and file_kind is not None:
        if file_kind.problem:
            yield Problem("model.base_model", f"{shorten(name, max_chars=200)} {file_kind.problem}", advice=ADVICE)
        yield from (
            _denoiser_alone(config, file_kind) if file_kind.is_denoiser else _single_file(config, file_kind, name)
        )
        yield from _variant(file_kind, name, config.model.variant, spec)
    elif not is_repository(name):
        yield Problem(
            "model.base_model",
            f"The base model {shorten(name, max_chars=200)} does not exist." if name else "No base model is set.",
            advice=THREE_WAYS,
        )
    elif (downloaded := downloaded_folder(config)) is not None:
        yield from _diffusers_folder(
            downloaded, name, spec, is_whole=config.model.offline, elsewhere=parts_with_files(config)
        )
        yield from _variant(file_kind, name, config.model.variant, spec)
    elif config.model.offline:
        yield Problem(
            "model.base_model",
            f"The repository {name} has not been downloaded, and offline mode is on.",
            advice=f"Switch off offline mode. {THREE_WAYS}",
        )
    elif successor := successor_of(name):
        yield Problem(
            "model.base_model",
            f"The repository {name} was removed from Hugging Face, and is not on this machine.",
            "warning",
            f"Use {successor}, which contains the same weights.",
            "repository",
        )
    elif config.model.variant == BASE_VARIANT:
        yield from _unused_references(name, files_of(spec.name).variant_named(name) or BASE_VARIANT)


def variant_of_files(config: Config) -> str:
    """Return the variant of the base model's files; empty if it is not known."""
    file_kind = kind_of_model(config)
    is_known = file_kind is not None and file_kind.is_model and file_kind.family == config.model.family.name
    if file_kind is None or not is_known:
        return files_of(config.family.name).variant_named(config.model.base_model)
    return _variant_of(file_kind, config.model.base_model, config.family)


def other_family_of_files(config: Config) -> str:
    """Return the family of the base model's files if it is another one than the config's; empty otherwise."""
    file_kind = kind_of_model(config)
    is_other = file_kind is not None and file_kind.family in FAMILIES and file_kind.family != config.model.family.name
    return file_kind.family if file_kind is not None and is_other else ""


def _problems_of_text_widths(config: Config, file_kind: FileKind | None) -> Iterator[Problem]:
    """Yield an error where a text encoder of the base model has states of another width than its denoiser reads."""
    spec = config.family
    if not spec.text.widths or file_kind is None or file_kind.family != spec.name:
        return
    folder = downloaded_folder(config)
    architecture = architecture_of(str(folder) if folder else config.model.base_model.strip(), spec.name)
    configs = {} if architecture is None else architecture.configs
    for part in spec.parts:
        key, denoiser_key = spec.text.widths.get(part.name, ("", ""))
        given, needed = (
            _value_at(configs.get(part.name), key),
            _value_at(configs.get(spec.denoiser.name), denoiser_key),
        )
        needed = needed / spec.text.states_read if isinstance(needed, int) else needed
        if None not in (given, needed) and given != needed:
            yield Problem(
                "model.base_model",
                f"The {part.label} of {shorten(config.model.base_model, max_chars=200)} has states of width {given}; "
                f"its {spec.denoiser.label} reads {f'{needed:g}' if isinstance(needed, float) else needed}.",
                advice=f"Choose a base model whose text encoder is the one of {spec.label}.",
            )


def _value_at(config: Any, key: str) -> Any:
    """Return the value of a key of a config; None if it has none."""
    return config.get(key) if isinstance(config, Mapping) else None


def _single_file(config: Config, file_kind: FileKind, name: str) -> Iterator[Problem]:
    """Yield why a single file cannot be used, if so."""
    spec = config.family
    if not file_kind.is_model:
        message = file_kind.explain(f"{name} is not a complete model.")
        yield Problem("model.base_model", message, advice="Choose a checkpoint, a diffusers folder or a repository.")
    elif "code" in file_kind.facts:
        yield Problem("model.base_model", file_kind.sentence, advice="Get it as .safetensors, or from another place.")
    elif file_kind.family != spec.name:
        is_known = file_kind.family in FAMILIES
        other = FAMILIES[file_kind.family].label if is_known else "another family"
        message = f"{name} is not {with_article(spec.label)} model. {file_kind.sentence}"
        advice = f"Set the model family to {other}."
        yield Problem("model.base_model", message, advice=advice, remedy="family" if is_known else "")
    elif "text_encoders" in file_kind.facts and not set(spec.names_of("text_encoder")) <= parts_with_files(config):
        message = f"{name} has no text encoders. {file_kind.sentence}"
        yield Problem("model.base_model", message, advice="Choose a complete checkpoint or a diffusers folder.")
    else:
        yield from _tokenizer_of_file(config, file_kind)


def _tokenizer_of_file(config: Config, file_kind: FileKind) -> Iterator[Problem]:
    """Yield that the tokenizer of a model in a file has to be downloaded first, if it may not be."""
    spec = config.family
    if not spec.text.ships_vocabulary and config.model.offline and downloaded_folder(config) is None:
        repository = published_model(file_kind.model).repository
        message = f"The tokenizer of {spec.label} has not been downloaded ({repository}), and offline mode is on."
        advice = "Switch off offline mode once, or choose a base model in diffusers layout for tokenizer and configs."
        yield Problem("model.base_model", message, advice=advice)


def _denoiser_alone(config: Config, file_kind: FileKind) -> Iterator[Problem]:
    """Yield why a file with a denoiser alone cannot be the base model, if so: the other parts need files."""
    spec, name = config.family, shorten(config.model.base_model.strip(), max_chars=200)
    there = {spec.denoiser.name, *parts_with_files(config), *file_kind.facts.get("also", "").split(", ")}
    without = [p.label for p in spec.in_base_model.parts if p.name not in there]
    if file_kind.family != spec.name:
        message = f"{name} is not {with_article(spec.label)} model. {file_kind.sentence}"
        advice = f"Set the model family to {FAMILIES[file_kind.family].label}."
        yield Problem("model.base_model", message, advice=advice, remedy="family")
    elif without:
        message = f"{name} has no {' and no '.join(without)}. {file_kind.sentence}"
        advice = (
            f"Choose a file for each below, in the settings of the parts; or a complete base model, and set this file "
            f"as the file of the {spec.denoiser.label}."
        )
        yield Problem("model.base_model", message, advice=advice)
    else:
        yield from _tokenizer_of_file(config, file_kind)


def _variant(file_kind: FileKind | None, name: str, variant: str, spec: FamilySpec) -> Iterator[Problem]:
    """Yield that a model of the family is of another variant than the config's, or of one that cannot be trained."""
    if file_kind is None or not file_kind.is_model or file_kind.family != spec.name:
        return
    actual = _variant_of(file_kind, name, spec)
    if actual not in (BASE_VARIANT, *spec.variants, *spec.inputs):
        message = f"{name} is a model variant with additional inputs that is not supported. {file_kind.sentence}"
        yield Problem("model.base_model", message, advice="Choose the base text-to-image model.")
    elif {actual, variant} == {BASE_VARIANT, spec.by_inputs_alone(actual) or spec.by_inputs_alone(variant)}:
        yield from _unused_references(name, actual)
    elif actual != variant:
        message = (
            f"The model variant is set to {VARIANT_LABELS[variant]}, but {name} is another one. {file_kind.sentence}"
        )
        advice = f"Set the model variant to {VARIANT_LABELS[actual]}."
        yield Problem("model.variant", message, advice=advice, remedy="variant")


def _variant_of(file_kind: FileKind, name: str, spec: FamilySpec) -> str:
    """Return the variant of a model; one that its weights do not show is in the name of the file or repository."""
    return file_kind.variant or files_of(spec.name).variant_named(from_root(name).name) or BASE_VARIANT


def _unused_references(name: str, actual: str) -> Iterator[Problem]:
    """Yield a warning where an editing model is trained without reference images, which its weights allow."""
    if actual != BASE_VARIANT:
        message = f"{name} is of the variant {VARIANT_LABELS[actual]}, and is trained without its further image."
        advice = f"Set the model variant to {VARIANT_LABELS[actual]}."
        yield Problem("model.variant", message, "warning", advice, "variant")


def _loads(spec: FamilySpec, pipeline: str) -> bool:
    """Return whether a pipeline of diffusers has a model of a family, of a variant that the family loads."""
    return files_of(spec.name).pipelines.get(pipeline) in ("", *spec.variants, *spec.inputs)


def _diffusers_folder(
    folder: Path, name: str, spec: FamilySpec, *, is_whole: bool = True, elsewhere: Collection[str] = ()
) -> Iterator[Problem]:
    """Yield why a folder cannot be used, if so; `is_whole` means that no more files will be downloaded.

    The parts in `elsewhere` are read from files of their own.
    """
    try:
        index = json.loads((index_file(folder) or folder / INDEX).read_text(encoding="utf-8"))
        kind = str(index.get("_class_name", "")) if isinstance(index, dict) else ""
    except (OSError, ValueError, RecursionError):
        yield Problem(
            "model.base_model",
            f"{name} is not a diffusers model folder: its model_index.json is missing or cannot be read.",
            advice="Choose the folder that contains model_index.json.",
        )
        return
    if not _loads(spec, kind):
        other = next((s.label for s in FAMILIES.values() if _loads(s, kind)), "")
        wanted = f"{with_article(spec.label)} model"
        yield Problem(
            "model.base_model",
            f"{name} is {with_article(other)} model, not {wanted}."
            if other
            else f"{name} is not {wanted}. {identify(folder).sentence}",
            advice=f"Set the model family to {other}." if other else "Choose a model of this family.",
            remedy="family" if other else "",
        )
        return
    apart = {p.name for p in spec.parts if p.published_in} & identify(folder).without
    tokenizers = {} if spec.text.ships_vocabulary or not is_whole else spec.tokenizers
    needed = [tokenizer for name, tokenizer in tokenizers.items() if name not in apart]
    if missing := [tokenizer for tokenizer in needed if kind_of(folder / tokenizer) != "folder"]:
        yield Problem(
            "model.base_model",
            f"{name} is incomplete: its {missing[0]} is missing.",
            advice="Download or copy the model again.",
        )
    for part in (p for p in spec.in_base_model.parts if is_whole and p.name not in apart):
        if reason := why_incomplete(folder / part.name, has_weights=part.name not in elsewhere):
            yield Problem(
                "model.base_model",
                f"{name} is incomplete: {reason}",
                advice="Download or copy the model again.",
            )
