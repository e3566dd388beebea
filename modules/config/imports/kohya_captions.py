"""kohya's caption settings, of a whole run or of one subset of a dataset config."""

from __future__ import annotations

from typing import Any

from modules.config.imports.kohya_values import Args, flag_of, is_set, number_of, pop_first
from modules.config.migrations.tree_moves import Notes
from modules.system.problem import Problem, shown

_EXTENSIONS = (".txt", ".caption")
_TEXTS = {
    "keep_tokens_separator": "keep_tags_separator",
    "secondary_separator": "tag_group_separator",
    "caption_separator": "tag_delimiter",
    "caption_prefix": "prefix",
    "caption_suffix": "suffix",
}
CAPTION_KEYS = (
    "shuffle_caption",
    "keep_tokens",
    "caption_tag_dropout_rate",
    "enable_wildcard",
    "caption_extension",
    "caption_extention",
    *_TEXTS,
)


def caption_settings(given: Args, notes: Notes) -> dict[str, Any]:
    """Return the fields of a concept for kohya's caption settings, which are popped.

    Of a file with several lines kohya's trainers use the first, or with wildcards any.
    """
    text: dict[str, Any] = {}
    has_wildcards = flag_of(given.pop("enable_wildcard", False))
    text |= {"wildcards": True} if has_wildcards else {"choice": "first"}
    keep = number_of(pop_first(given, "keep_tokens"))
    if flag_of(given.pop("shuffle_caption", False)):
        text["shuffle_tags"] = True
    dropout = number_of(pop_first(given, "caption_tag_dropout_rate"))
    if dropout:
        text |= {"tag_dropout": True, "tag_dropout_mode": "random", "tag_dropout_probability": dropout}
    if "shuffle_tags" in text or dropout:
        text["keep_tags_count"] = int(keep or 0)
    for theirs, ours in _TEXTS.items():
        if (value := pop_first(given, theirs)) is not None:
            text[ours] = str(value)
    return {"text": text, **_extension(given, notes)}


def _extension(given: Args, notes: Notes) -> dict[str, Any]:
    extension = pop_first(given, "caption_extension", "caption_extention")  # sd-scripts accepts its old misspelling
    if not is_set(extension) or extension == ".txt":
        return {}
    if extension in _EXTENSIONS:
        return {"caption_extension": extension}
    notes.append(Problem("concepts", f"Captions in {shown(extension)} files are not supported.", "warning"))
    return {}
