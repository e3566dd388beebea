"""A run on another model family: the settings of data and run stay, the rest comes from a preset of that family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from modules.config.records import heads, record_at
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.config.sections.evaluation import REFERENCE_IMAGES, SamplePrompt
from modules.config.usage import trained_parts, uses_denoiser, with_family
from modules.families.registry import FAMILIES, files_of
from modules.families.spec import BASE_VARIANT, VARIANT_LABELS
from modules.sampling.registry import SAMPLERS
from modules.settings.edit import get_path, live_records, replace_value
from modules.settings.every import Every
from modules.settings.field import FieldRecord, records_of
from modules.settings.shared_types import side_of
from modules.system.problem import Problem, list_first, shorten

# The settings that a run keeps with any model; all others are the preset's.
_KEPT = (
    "general",
    "data",
    "masks",
    "model.offline",
    "model.hub_cache_dir",
    "quantization.cache_dir",
    "concepts_file",
    "concepts",
    "training.epochs",
    "training.vae",
    "validation",
    "sampling",
    "backup",
    "output.destination",
    "output.trigger_words",
    "output.thumbnail",
    "output.never_replace",
    "output.embed_config",
    "output.embed_dataset",
    "multi_gpu",
)
# The same, if they differ from the defaults: a preset of another method has its own.
_KEPT_IF_CHANGED = ("training.method", "training.loss", "reward")
_NOT_KEPT = ("general.notes", "sampling.model")  # although their sections are kept
_LAYER_NAMES = ("adapter.custom_layers", "training.layer_filter_names", "quantization.custom_layers")
_CHANGED_ANYWAY = ("model.family", "model.base_model", "parts.", "embeddings.words.", "general.notes")
_FILE_ENDINGS = (".safetensors", ".ckpt", ".pt", ".pth", ".bin")
_MAX_NAMED = 8
_MAX_CHARS = 60


@dataclass(frozen=True, slots=True)
class CarriedOver:
    """The config for the other family, and a note on everything that was left out or changed, with the reason.

    The notes have the paths of the config before, apart from `problems_of` the new one.
    """

    config: Config
    notes: tuple[Problem, ...]


def start_of(family: str) -> Config:
    """Return the config of a family that has no presets: the defaults, with its first published model."""
    config, spec = with_family(Config(), family, BASE_VARIANT), FAMILIES[family]
    repository = next((model.repository for model in files_of(family).models if model.repository), "")
    model = config.model.model_copy(update={"base_model": repository or config.model.base_model})
    data = config.data.model_copy(update={"resolution_px": (spec.default_resolution_px,)})
    return config.model_copy(update={"model": model, "data": data})


def train_on(config: Config, start: Config) -> CarriedOver:
    """Return a run like another one for the model of `start`, usually a preset of another family.

    Concepts, captions, masks, sample prompts, folders, the name of the result, epochs (so as many images are seen),
    resolution, validation and backups stay. Periods in steps become as many images of the new batch size. The training
    method and the losses stay if they are defined for the other family. The rest comes from `start`.
    """
    result, notes = start, [*_left_out(config, start), *_about_resolution(config, start)]
    changed = [path for path in _KEPT_IF_CHANGED if get_path(config, path) != get_path(Config(), path)]
    for path in (*_KEPT, *changed):
        result = replace_value(result, path, get_path(config, path))
    for path in _NOT_KEPT:
        result = replace_value(result, path, get_path(start, path))
    result = replace_value(result, "output.destination", _destination(config, start))
    result = _with_periods(result, _step_images(config) / _step_images(start))
    prompts = tuple(_prompt(prompt, config, start) for prompt in config.sampling.prompts)
    result = replace_value(result, "sampling.prompts", prompts)
    result, embedding_notes = _with_embeddings(result, config)
    result, refused = _without_refused(result, config, start, (*_KEPT, *changed))
    notes += [*_about_prompts(config, result), *embedding_notes, *refused]
    return CarriedOver(result, (*notes, *_from_preset(config, result, {note.path for note in notes})))


def _step_images(config: Config) -> int:
    """Return the images of an optimizer step."""
    return config.training.batch_size * config.training.accumulation_steps


def _with_periods(config: Config, factor: float) -> Config:
    """Return the config with each kept period of steps times a factor: as many images."""
    for record in records_of(Config):
        if record.kind == "every" and record.path.startswith(_KEPT):
            period: Every = get_path(config, record.path)
            if period.unit == "step" and period.n > 0:
                number = Every(n=max(1, round(period.n * factor)), unit="step")
                config = replace_value(config, record.path, number)
    return config


def _destination(config: Config, start: Config) -> str:
    """Return the place of the result, with the ending that the results of `start` have: of a file, or of a folder."""
    place, ending = config.output.destination, PurePath(start.output.destination).suffix
    if PurePath(place).suffix in _FILE_ENDINGS:
        place = place.removesuffix(PurePath(place).suffix)
    return place + ending if ending in _FILE_ENDINGS else place


def _prompt(prompt: SamplePrompt, config: Config, start: Config) -> SamplePrompt:
    """Return a sample prompt for the model of `start`: of a possible size, with a sampler and guidance that suit it."""
    spec, usual = start.family, SamplePrompt()
    step_px = max(spec.size_step_px, spec.latents.px(spec.latents.packed))
    changes: dict[str, Any] = {
        name: max(step_px, round(getattr(prompt, name) / step_px) * step_px) for name in ("width_px", "height_px")
    }
    sampler = SAMPLERS[prompt.sampler]
    if not sampler.supports(spec.process.predictions):
        changes["sampler"] = usual.sampler
    if sampler.is_for_few_steps:
        changes |= {"sampler": usual.sampler, "steps": usual.steps}
    if sampler.is_for_few_steps or spec.sample_guidance != config.family.sample_guidance:
        changes["guidance"] = spec.sample_guidance
    if start.model.variant != config.model.variant:
        of_images = ("inpainting", "base_image", "mask_image", "depth_image", *REFERENCE_IMAGES)
        changes |= {name: getattr(usual, name) for name in of_images}
    return prompt.model_copy(update=changes)


def _with_embeddings(result: Config, config: Config) -> tuple[Config, Iterator[Problem]]:
    """Return the config with the embeddings that can start anew on the other model, and notes on the others."""
    words, source, target = config.embeddings.words, config.family, result.family
    if not words:
        return result, iter(())
    is_same_target = result.training.trains == config.training.trains
    kept = tuple(w for w in words if not w.file.strip()) if target.text.embedding_tensors and is_same_target else ()
    if kept:
        result = replace_value(result, "embeddings", config.embeddings.model_copy(update={"words": kept}))
    if not target.text.embedding_tensors:
        reason = f"{target.label} does not support embeddings"
    elif not is_same_target:
        reason = "the preset has another training target"
    else:
        reason = f"their files hold vectors of {source.label}'s text encoders"
    names = ", ".join(w.placeholder for w in words if w not in kept)
    notes = [_note("embeddings.words", f"Embeddings ({names}) are left out: {reason}.")] if names else []
    return result, iter(notes)


def _without_refused(
    result: Config, config: Config, start: Config, kept: Iterable[str]
) -> tuple[Config, tuple[Problem, ...]]:
    """Return the config without kept settings that the rules refuse for the other model, and their sentences."""
    notes: list[Problem] = []
    known = {(p.path, p.message) for p in problems_of(config)}
    while True:
        errors = (p for p in problems_of(result) if p.severity == "error" and (p.path, p.message) not in known)
        for problem in errors:
            place = next((p for p in (problem.path, *heads(problem.path)) if _can_reset(result, start, p, kept)), "")
            if place:
                break
        else:
            return result, tuple(notes)
        notes.append(_note(problem.path, f"{_label(config, place)} is left out: {problem.message}"))
        result = replace_value(result, place, get_path(start, place))


def _can_reset(result: Config, start: Config, path: str, kept: Iterable[str]) -> bool:
    """Return whether a path is inside a kept setting and has another value in `start`. Concepts and prompts stay."""
    is_kept = any(path == k or path.startswith(f"{k}.") for k in kept)
    if not is_kept or path.startswith(("concepts", "sampling.prompts")):
        return False
    try:
        return bool(get_path(result, path) != get_path(start, path))
    except KeyError:
        return False


# The notes: what is left out, and why.


def _left_out(config: Config, start: Config) -> Iterator[Problem]:
    """Yield the settings made for the model before: its variant, files, layers, own settings, trained text encoders."""
    source, target = config.family, start.family
    variant, label = config.model.variant, VARIANT_LABELS.get(config.model.variant, config.model.variant)
    if variant != start.model.variant and variant != BASE_VARIANT:
        has_any = variant in (*target.variants, *target.inputs)
        reason = "the preset is for the base model" if has_any else f"{target.label} has no {label} models"
        yield _note("model.variant", f"Model variant {label} is left out: {reason}.")
    for record in live_records(config):
        if _is_at_default(config, record) or record.path == "model.base_model" or _is_kept(record.path):
            continue
        value = shorten(str(get_path(config, record.path)), max_chars=_MAX_CHARS)
        if record.setting.path_kind in ("file", "model") and not record.path.startswith("embeddings."):
            yield _note(record.path, f"{record.label} ({value}) is left out: it is for {source.label} models.")
        elif record.path in _LAYER_NAMES:
            yield _note(
                record.path, f"{record.label} ({value}) is left out: layers of {target.label} have other names."
            )
        elif record.path.startswith("model.family."):
            yield _note(record.path, f"{record.label} ({value}) is left out: it is a setting of {source.label} models.")
    yield from _encoders(config, start)


def _encoders(config: Config, start: Config) -> Iterator[Problem]:
    """Yield a note if text encoders were trained, and the other model's are not."""
    trained, still = (
        [part.label for part in trained_parts(c) if part.role == "text_encoder" and uses_denoiser(c)]
        for c in (config, start)
    )
    if trained and not still:
        can = [p.label for p in start.family.trainable_parts if p.role == "text_encoder"]
        reason = (
            f"the preset leaves {' and '.join(can)} frozen; Train switches it on"
            if can
            else f"{start.family.label} is trained without its text encoders"
        )
        path = f"parts.{next(p.name for p in trained_parts(config) if p.role == 'text_encoder')}.train"
        yield _note(path, f"Training of {' and '.join(trained)} is left out: {reason}.")


def _about_resolution(config: Config, start: Config) -> Iterator[Problem]:
    kept, usual = (max(map(side_of, c.data.resolution_px)) for c in (config, start))
    if kept != usual:
        sentence = f"The resolution of {kept} px stays; the preset is for {usual} px."
        advice = "It takes more memory: lower it, or fit the run to the card." if kept > usual else ""
        yield Problem("data.resolution_px", sentence, "warning" if advice else "info", advice)


def _about_prompts(config: Config, result: Config) -> Iterator[Problem]:
    """Yield a note with the settings of sample prompts that changed."""
    changed: dict[str, str] = {}
    for before, now in zip(config.sampling.prompts, result.sampling.prompts, strict=True):
        for record in records_of(SamplePrompt):
            old, new = (_value_text(record, getattr(prompt, record.name)) for prompt in (before, now))
            if old != new:
                changed.setdefault(record.name, f"{record.label} {old} to {new}")
    if changed:
        reason = f"{result.family.label} is sampled in another way"
        yield _note("sampling.prompts", f"Sample prompts changed ({', '.join(changed.values())}): {reason}.")


def _from_preset(config: Config, result: Config, explained: set[str]) -> Iterator[Problem]:
    """Yield one note with the other settings that were changed from the defaults and are now the preset's."""
    labels: dict[str, None] = {}
    for record in live_records(config):
        if record.kind in ("list", "map") or _is_kept(record.path) or _is_at_default(config, record):
            continue
        if record.path in explained or record.path.startswith(_CHANGED_ANYWAY):
            continue
        if not _is_same(config, result, record):
            labels[record.label] = None
    if labels:
        yield _note("", f"As the preset has it: {list_first(list(labels), _MAX_NAMED)}.")


def _is_same(config: Config, result: Config, record: FieldRecord) -> bool:
    """Return whether a setting has the same value in both; of a choice with settings of its own, the same name."""
    try:
        values = [get_path(c, record.path) for c in (config, result)]
    except KeyError:
        return False
    before, now = (v.name for v in values) if record.kind == "section" else values
    return bool(before == now)


def _is_kept(path: str) -> bool:
    kept = (*_KEPT, *_KEPT_IF_CHANGED)
    return path not in _NOT_KEPT and any(path == k or path.startswith(f"{k}.") for k in kept)


def _is_at_default(config: Config, record: FieldRecord) -> bool:
    return bool(get_path(config, record.path) == record.default)


def _label(config: Config, path: str) -> str:
    record = record_at(config, path)
    return record.label if record is not None else path.rpartition(".")[2].replace("_", " ").capitalize()


def _value_text(record: FieldRecord, value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else record.choices.get(str(value), str(value))
    return shorten(text, max_chars=20) or "none"


def _note(path: str, message: str) -> Problem:
    return Problem(path, message, "info")
