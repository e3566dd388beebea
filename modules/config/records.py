"""The records of the fields of a config, or of another tree of sections, and whether a run uses them.

The conditions of single settings are declared with the settings (`applies_when`); the settings without effect for a
training target or method follow from the method's record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from modules.config import usage
from modules.config.schema import Config
from modules.families.spec import BASE_VARIANT
from modules.settings.edit import condition_path, get_path, is_relevant
from modules.settings.field import FieldRecord, Section, When, record_of, records_of, records_of_entry


@cache
def top_records(config_type: type[Section]) -> Mapping[str, FieldRecord]:
    """Return the records of a config type by path, nested sections flattened, lists and maps as one record each."""
    return {record.path: record for record in records_of(config_type)}


@cache
def inner_records(section: type[BaseModel], prefix: str) -> tuple[FieldRecord, ...]:
    """Return the records of a variant or of an item of a map or list, under its path."""
    return records_of(section, prefix)


def record_at(config: Section, path: str) -> FieldRecord | None:
    """Return the record of the field at a path, also inside variants, parts and lists; None if it does not exist."""
    holder = _holder_of(type(config), path)
    if holder is None or holder.path == path:
        return holder
    section, prefix = _item_type(config, holder), holder.path
    entry = path[len(holder.path) + 1 :].partition(".")[0]
    keys = config.map_keys(holder.name) if holder.kind == "map" else ()
    if key := next((key for key in keys if key.name == entry), None):
        return next((r for r in records_of_entry(holder, key) if r.path == path), None)
    if holder.kind in ("map", "list"):
        prefix += f".{entry}"
    return next((r for r in inner_records(section, prefix) if r.path == path), None) if section else None


def _holder_of(section: type[BaseModel], path: str) -> FieldRecord | None:
    """Return the record of the field at a path, or of the variant, map or list that contains it."""
    prefix = ""
    for name in path.split("."):
        if name not in section.model_fields:
            return None
        if record := record_of(section, name, prefix):
            return record
        inner = section.model_fields[name].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return None
        section, prefix = inner, f"{prefix}.{name}" if prefix else name
    return None


def heads(path: str) -> Iterator[str]:
    """Yield the prefixes of a dotted path, longest first: a.b.c gives a.b, then a."""
    names = path.split(".")
    for count in range(len(names) - 1, 0, -1):
        yield ".".join(names[:count])


def _item_type(config: Section, holder: FieldRecord) -> type[BaseModel] | None:
    return type(get_path(config, holder.path)) if holder.kind == "section" else holder.item


# The settings that a run does not use because of its family, training target and method, so that forms hide them.


_INPAINTING = "inpainting"  # a family without such models is refused with it
_OF_LATENTS = (
    "data.latent_cache",
    "data.text_cache",
    "data.cache_location",
    "data.cache_dtype",
    "data.verify_cache",
    "general.only_cache",
)
_OF_CAPTIONS = (
    "data.caption_dropout",
    "data.caption_dropout_2",
    "data.caption_dropout_3",
    "output.trigger_words",
    "sampling.prompts_file",
)
_OF_DENOISING = (
    "quantization",
    "training.method",
    "validation.num_timesteps",
)
_OF_TRAINED_PARTS = ("train", "learning_rate", "stop_after")


def why_unused(config: Section, path: str) -> str:
    """Return why a run does not use the setting at a path, such as "training the VAE"; empty if it may use it."""
    if not isinstance(config, Config):
        return ""  # the settings of a job
    return next(
        (why for prefix, why in _unused_settings(config) if path == prefix or path.startswith(f"{prefix}.")), ""
    )


def _unused_settings(config: Config) -> Iterator[tuple[str, str]]:
    family, method, settings = config.family, usage.method_of(config), usage.settings_of_method(config)
    if not (family.variants or family.inputs) and config.model.variant == BASE_VARIANT:
        yield "model.variant", f"{family.label} has no other models"
    if not usage.supports_embeddings(config):
        yield "adapter.bundle_embeddings", f"{family.label} does not support embeddings"
    if not method.adds_noise(settings):
        yield "training.noise", f"{method.label} adds no noise of its own"
    if not method.has_denoising_loss(settings):
        yield "training.loss", f"{method.label} has a loss of its own"
    if usage.learns_from(config) == "prompts":
        yield "masks", f"{method.label} trains on images that it samples, without masks"
    if not usage.inpaints(config) and config.model.variant != _INPAINTING:
        yield "masks.custom_conditioning_image", "the model is not an inpainting model"
    if usage.trains_on_pixels(config):
        yield from _unused_on_pixels(config)
    if config.training.trains == "embedding":
        for part in config.family_parts:
            yield from ((f"parts.{part.name}.{name}", "only embeddings are trained") for name in _OF_TRAINED_PARTS)


def _unused_on_pixels(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the settings that a run of the VAE does not use: it reads images, and no other part of the model."""
    why = "the VAE is trained on images, without captions, latents or noise"
    vae = config.family.names_of("vae")
    yield from ((f"parts.{part.name}", why) for part in config.family_parts if part.name not in vae)
    family = [f"model.family.{name}" for name in type(config.model.family).model_fields if name != "name"]
    yield from ((path, why) for path in (*family, *_OF_LATENTS, *_OF_CAPTIONS, *_OF_DENOISING))


# Whether a setting applies with the others, and its conditions as a phrase.


_MAX_NAMED = 3


def is_reachable(config: Section, record: FieldRecord) -> bool:
    """Return whether the field applies: its condition and the conditions of the fields it depends on hold, and the
    training target and method use it.
    """
    if not is_relevant(config, record) or why_unused(config, record.path):
        return False
    return all(is_reachable(config, other) for other in _dependencies(config, record))


def describe_needs(config: Section, record: FieldRecord) -> str:
    """Return the conditions that a field needs in order to apply, or why it is not used; empty if it applies."""
    if why := why_unused(config, record.path):
        return f"not used: {why}"
    needs = _needs(config, record)
    return f"needs {', and '.join(dict.fromkeys(needs))}" if needs else ""


def describe_variants(record: FieldRecord, names: tuple[str, ...]) -> str:
    """Return the phrase that a field needs one of some variants of a choice."""
    return f"needs {record.label}: {_join_choices([record.choices.get(name, name) for name in names])}"


def _needs(config: Section, record: FieldRecord) -> list[str]:
    condition = record.setting.applies_when
    needs = []
    if condition is not None and not is_relevant(config, record):
        needs.append(" or ".join(_describe_condition(config, record, one) for one in condition.alternatives))
    for other in _dependencies(config, record):
        needs += _needs(config, other)
    return needs


def _dependencies(config: Section, record: FieldRecord) -> list[FieldRecord]:
    """Return the records that a field depends on: of its section, and of the field in its condition."""
    condition = record.setting.applies_when
    paths = [record.path.rpartition(".")[0]]
    if condition is not None and condition.otherwise is None:
        paths.append(condition_path(record, condition))
    return [other for path in paths if (other := record_at(config, path)) is not None]


def _describe_condition(config: Section, record: FieldRecord, condition: When) -> str:
    switch = record_at(config, condition_path(record, condition))
    label = switch.label if switch is not None else condition.path
    if condition.is_set:
        return f"{label} to be set"
    return f"{label}: {_join_choices([_describe_value(switch, value) for value in condition.is_any_of])}"


def _describe_value(switch: FieldRecord | None, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return switch.choices.get(str(value), str(value)) if switch is not None else str(value)


def _join_choices(names: list[str]) -> str:
    shown = names[:_MAX_NAMED]
    rest = len(names) - len(shown)
    return " or ".join(shown) + (f" or {rest} more" if rest else "")
