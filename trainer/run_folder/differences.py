"""The differences between what decided two runs, as parts of sentences: versions, machine, files, images, settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from modules.config.codec import decode, encode
from modules.config.records import record_at
from modules.config.schema import Config
from modules.settings.every import Every
from modules.system.problem import agree, count, list_first, quote, shorten
from trainer.run_folder.recipe import ConceptImages, ReadFile, Recipe

Topic = Literal["version", "machine", "model", "images", "setting", "choice", "pace"]

PLACES = (
    "general.workspace_dir",
    "general.cache_dir",
    "model.hub_cache_dir",
    "quantization.cache_dir",
    "output.destination",
)
"""The settings that name where a run writes: they do not decide its result."""
_WITHOUT_EFFECT = (
    *PLACES,
    "general.notes",
    "general.tensorboard",
    "general.separate_process",
    "general.num_threads",  # the number that it gives is compared
    "output.thumbnail",
    "output.never_replace",
    "output.embed_",
    "output.trigger_words",
    "backup.",
    "concepts_file",
    "sampling.prompts_file",
    "remembered",
    "unknown",
)
_MAX_NAMED = 4
_VARIANT = "name"  # the key of the name of a variant, which decides what its other settings are
MACHINE_LABELS = {
    "device": "device",
    "processor": "processor",
    "system": "system",
    "driver": "driver",
    "num_threads": "number of CPU threads",
    "num_processes": "number of processes",
}
"""The label of each fact of a machine, by its name in a recipe."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference, as a part of a sentence: "torch is 2.14.0 (was 2.13.0)". `path` is the path of a setting."""

    topic: Topic
    text: str
    path: str = ""


def differences(before: Recipe, now: Recipe) -> tuple[Difference, ...]:
    """Return how a run differs from an earlier one in what decides its result, apart from its folders."""
    return (
        *version_differences(before, now.versions),
        *_machine_differences(before, now),
        *file_differences(before, now),
        *image_differences(before.concepts, now.concepts),
        *setting_differences(before, now),
        *(
            Difference("choice", f"the run's own choice of {name} is {after} (was {was})")
            for name, was, after in _changes(before.choices, now.choices)
        ),
    )


def version_differences(before: Recipe, versions: Mapping[str, str]) -> Iterator[Difference]:
    """Yield the versions that differ from the versions of a run."""
    for name, was, now in _changes(before.versions, versions):
        yield Difference("version", f"{name} is {version_text(name, now)} (was {version_text(name, was)})")


def version_text(name: str, version: str) -> str:
    """Return a version as messages show it: a commit by its first digits."""
    return version[:12] if "commit" in name else shorten(version, max_chars=60)


def _machine_differences(before: Recipe, now: Recipe) -> Iterator[Difference]:
    for name, label in MACHINE_LABELS.items():
        was, after = getattr(before.machine, name), getattr(now.machine, name)
        if was != after:
            yield Difference("machine", f"the {label} is {after or 'unknown'} (was {was or 'unknown'})")


def file_differences(before: Recipe, now: Recipe) -> Iterator[Difference]:
    """Yield the files of models that are missing, new or changed; one without a digest counts by its sample or size."""
    was, after = ({(f.setting, f.name): f for f in recipe.files} for recipe in (before, now))
    for setting in {s for s, _ in was}:
        names = [[key for key in files if key[0] == setting] for files in (was, after)]
        if list(map(len, names)) == [1, 1]:  # one file under another name: its content counts
            after[names[0][0]] = after.pop(names[1][0])
    for key in sorted(was.keys() | after.keys()):
        name = f"{key[1]} ({_label(Config(), key[0])})"
        if key not in after:
            yield Difference("model", f"{name} is missing", key[0])
        elif key not in was:
            yield Difference("model", f"{name} is new", key[0])
        else:
            if not _may_be_equal(was[key], after[key]):
                yield Difference("model", f"{name} has another content", key[0])


def _may_be_equal(one: ReadFile, other: ReadFile) -> bool:
    """Return whether two files are equal as far as both recipes know them."""
    if one.digest and other.digest:
        return one.digest == other.digest
    if one.sample and other.sample:
        return one.sample == other.sample
    return one.num_bytes == other.num_bytes


def image_differences(before: Sequence[ConceptImages], now: Sequence[ConceptImages]) -> Iterator[Difference]:
    """Yield how the images and captions of concepts differ."""
    for was, after in _pairs(before, now):
        if was is not None and after is None:
            yield Difference("images", f"the concept {was.name} ({was.kind}) is missing")
        elif was is None and after is not None:
            yield Difference("images", f"the concept {after.name} ({after.kind}) is new")
        elif was is not None and after is not None and was.digest != after.digest:
            yield from (Difference("images", text) for text in _of_images(was, after))


def missing_images(before: Sequence[ConceptImages], now: Sequence[ConceptImages]) -> dict[str, list[str]]:
    """Return the names of images that are not there any more, by their concept; none where they are not known."""
    names = dict[str, list[str]]()
    for was, after in _pairs(before, now):
        if was is None:
            continue
        if after is not None and was.images and after.images:
            gone = sorted(was.images.keys() - after.images.keys())
        else:
            gone = []
        if gone or after is None or after.num_images < was.num_images:
            names[was.name] = gone
    return names


def setting_differences(before: Recipe, now: Recipe) -> Iterator[Difference]:
    """Yield the settings that differ and that have an effect on the result or on the time of a step."""
    config, former = (decode(dict(recipe.config)).config for recipe in (now, before))
    by_content = {f.setting for f in before.files} & {f.setting for f in now.files}
    for path, was, after in sorted(_setting_changes(_comparable(former), _comparable(config)), key=lambda c: c[0]):
        if path in by_content or path.startswith(_WITHOUT_EFFECT):
            continue
        if isinstance(was, Mapping) or isinstance(after, Mapping):  # an entry of a list
            owner = config if after is not None else former
            text = f"{_label(owner, path)} is {'missing' if after is None else 'new'}"
        else:
            record = record_at(config, path)
            if record is not None and not record.optional:  # a file may lack its part
                was, after = (_flat(record.default) if value is None else value for value in (was, after))
            if was == after:
                continue
            choices = record.choices if record is not None else {}
            text = f"{_label(config, path)} is {_text(after, choices)} (was {_text(was, choices)})"
        yield Difference("setting", text, path)


def list_differences(differences: Iterable[Difference]) -> str:
    """Return differences as one part of a sentence: the first ones, and how many more there are."""
    return list_first([difference.text for difference in differences], _MAX_NAMED, separator="; ")


def names_of(names: Sequence[str]) -> str:
    """Return names as text: the first ones, and how many more there are."""
    return list_first([shorten(name, max_chars=80) for name in names], _MAX_NAMED)


def _of_images(was: ConceptImages, now: ConceptImages) -> Iterator[str]:
    """Yield the differences in the images of a concept: image by image, if both recipes list them."""
    name = now.name
    if not (was.images and now.images):
        yield f"the images or captions of {name} differ ({now.num_images:,}, was {was.num_images:,})"
        return
    both = sorted(was.images.keys() & now.images.keys())
    of_was, of_now = ({n: r.images[n].partition(" ") for n in both} for r in (was, now))
    kinds = (
        ("image", "missing", sorted(was.images.keys() - now.images.keys())),
        ("image", "new", sorted(now.images.keys() - was.images.keys())),
        ("image", "changed", [n for n in both if of_was[n][0] != of_now[n][0]]),
        ("caption", "changed", [n for n in both if of_was[n][2] != of_now[n][2]]),
    )
    for what, kind, names in kinds:
        if names:
            yield f"{count(len(names), what)} of {name} {agree(len(names), 'is')} {kind} ({names_of(names)})"
    if not any(names for *_, names in kinds):
        yield f"the images of {name} are in another order"


def _pairs(
    before: Sequence[ConceptImages], now: Sequence[ConceptImages]
) -> list[tuple[ConceptImages | None, ConceptImages | None]]:
    """Return the concepts of two runs in pairs: by position, or by name and kind if there are others.

    A concept without a name has the name of its folder, which may have moved.
    """
    if [c.kind for c in before] == [c.kind for c in now]:
        return list(zip(before, now, strict=True))
    was, after = ({(c.name, c.kind): c for c in concepts} for concepts in (before, now))
    return [(was.get(key), after.get(key)) for key in dict.fromkeys([*was, *after])]


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys([*before, *now]):
        was, after = before.get(name, "absent"), now.get(name, "absent")
        if was != after:
            yield name, was, after


def _comparable(config: Config) -> dict[str, Any]:
    """Return the settings, with concepts without their folders."""
    encoded = encode(config)
    for concept in encoded["concepts"]:
        for name in ("name", "path", "captions_file", "metadata_file"):  # their content counts
            concept.pop(name, None)
    return {key: _flat(value) for key, value in encoded.items()}


def _flat(value: Any) -> Any:
    """Return a value of the settings in which each duration is a text, such as 3 epochs."""
    if isinstance(value, Every):
        return _flat(value.model_dump())
    if isinstance(value, Mapping):
        if value.keys() == {"n", "unit"}:
            plural = "" if value["n"] == 1 else "s"
            return "never" if value["unit"] == "never" else f"{value['n']:g} {value['unit']}{plural}"
        return {key: _flat(entry) for key, entry in value.items()}
    return [_flat(entry) for entry in value] if isinstance(value, list) else value


def _setting_changes(was: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the paths where two trees of settings differ, with both values.

    Of a variant that was replaced by another one only the names: their settings have nothing in common.
    """
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        if was.get(_VARIANT) != now.get(_VARIANT):
            yield path, was.get(_VARIANT), now.get(_VARIANT)
            return
        for key in dict.fromkeys([*was, *now]):
            one, other = was.get(key), now.get(key)
            if key in was and key not in now:
                other = {} if isinstance(one, Mapping) else None
            elif key not in was:
                one = {} if isinstance(other, Mapping) else None
            yield from _setting_changes(one, other, f"{path}.{key}" if path else str(key))
    elif _is_list_of_entries(was) and _is_list_of_entries(now):
        for number, (one, other) in enumerate(zip_longest(was, now)):
            yield from _setting_changes(one, other, f"{path}.{number}")
    elif was != now:
        yield path, was, now


def _is_list_of_entries(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value)


def _label(config: Config, path: str) -> str:
    """Return the label of a setting, behind the name of its part or concept, if it belongs to one."""
    record = record_at(config, path)
    owner, _, last = path.rpartition(".")
    if record is None and last.isdecimal() and (entries := record_at(config, owner)) is not None:
        return f"{entries.label}: number {int(last) + 1}"
    label = record.label if record is not None else path
    owner, number, *_ = [*path.split("."), ""]
    if owner == "concepts" and number.isdecimal() and int(number) < len(config.concepts):
        return f"{config.concepts[int(number)].label_at(int(number))}: {label}"
    return f"{number}: {label}" if owner == "parts" else label


def _text(value: Any, choices: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return shorten(choices.get(value, value) or "empty", max_chars=60)
    return "not set" if value is None else quote(value)
