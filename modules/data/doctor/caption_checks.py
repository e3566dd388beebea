"""Checks of captions and tags."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.data.captions.tags import split_tags
from modules.data.doctor.finding import CheckSpec, Examination, ExaminedConcept, ExaminedImage, Finding
from modules.data.scan import fault_of_caption
from modules.system.problem import shorten

USUAL_LIMIT_CHUNKS = 3  # of other trainers and of many programs
CONSTANT_SHARE = 0.95  # of the images of a concept
MIN_WORDS = 15  # shorter captions are often the same; of longer ones, one was probably copied
MOST = 0.5  # of the images of a concept: then the same caption is probably meant
MIN_IMAGES = 10  # in fewer, that a tag is in all or in one means little
_MIN_TAGS, _MAX_WORDS = 3.0, 3.0  # on average per caption and per tag: captions with fewer or longer ones are sentences
_MAX_NAMED = 8
_MAX_CHARS = 120


def _find_missing(examined: Examination) -> Iterator[Finding]:
    for image in examined.images:
        source = image.example.image
        if source.captions and not source.caption_fault:
            continue
        fault = fault_of_caption(source) or "it has no caption"
        if source.captions:
            fix = "Check the text, and save the file as UTF-8."
            yield Finding((image.path,), f"{_upper(fault)}.", 1, "caption", fix, "info")
        else:
            fix = "Write a caption, or choose where the captions of the concept are from."
            reason = f"The image is trained without a caption: {fault}."
            yield Finding((image.path,), reason, 0, "captions", fix)


def _find_duplicates(examined: Examination) -> Iterator[Finding]:
    for concept, images in examined.by_concept():
        if not concept.has_own_captions:
            continue
        same: dict[tuple[str, ...], list[Path]] = defaultdict(list)
        for image in images:
            if image.example.image.captions:
                same[_without_case(image.example.image.captions)].append(image.path)
        for captions, files in same.items():
            if len(files) < 2:
                continue
            if not concept.has_images:
                yield _describe_duplicate_prompt(captions, files)
                continue
            is_default = captions == _without_case(concept.default_captions)
            is_meant = is_default or len(files) > MOST * len(images)
            fix = "Nothing, if it is meant for all of them; else describe what differs between the images."
            if is_default:
                fix = "Nothing, if the default caption is meant for all of them; else write captions for these images."
            elif not is_meant:
                fix = "Check that no caption was copied to a wrong image; describe what differs between the images."
            yield Finding(
                tuple(files),
                f"Several images have the same caption: {shorten(' / '.join(captions), max_chars=_MAX_CHARS)}",
                len(files),
                "images",
                fix,
                "info" if is_meant or len(" ".join(captions).split()) < MIN_WORDS else "warning",
            )


def _without_case(captions: Sequence[str]) -> tuple[str, ...]:
    return tuple(" ".join(caption.lower().split()) for caption in captions)


def _describe_duplicate_prompt(captions: tuple[str, ...], files: Sequence[Path]) -> Finding:
    return Finding(
        tuple(files),
        f"Several prompts are the same: {shorten(' / '.join(captions), max_chars=_MAX_CHARS)}",
        len(files),
        "prompts",
        "Keep one of them; to use prompts more often, raise the repeats instead.",
        "info",
    )


@dataclass(frozen=True, slots=True)
class _TaggedImages:
    """The images of a concept whose captions are lists of tags, in how many each tag is, and the usual first tags."""

    tags: Mapping[Path, frozenset[str]]
    counts: Counter[str]
    first: frozenset[str]


def _read_tags(concept: ExaminedConcept, images: Sequence[ExaminedImage]) -> _TaggedImages | None:
    """Return the tags of a concept; None if it has few images or only prompts, or captions that are sentences."""
    if not concept.has_images:
        return None
    lists: dict[Path, list[str]] = {}
    first: Counter[str] = Counter()
    for image in images:
        tags_of_image: list[str] = []
        for caption in image.example.image.captions:
            tags = _tags(caption, concept)
            first.update(t.lower() for t in tags[: max(1, concept.rules.keep_count)])
            tags_of_image += [t.lower() for t in tags]
        if tags_of_image:
            lists[image.path] = tags_of_image
    every = [tag for tags in lists.values() for tag in tags]
    if len(lists) < MIN_IMAGES or len(every) / len(lists) < _MIN_TAGS:
        return None
    if sum(len(t.split()) for t in every) / len(every) > _MAX_WORDS:
        return None
    sets = {path: frozenset(tags) for path, tags in lists.items()}
    counts = Counter(tag for tags in sets.values() for tag in tags)
    return _TaggedImages(sets, counts, frozenset(t for t, n in first.items() if n > MOST * len(lists)))


def _tags(caption: str, concept: ExaminedConcept) -> tuple[str, ...]:
    rules = concept.rules
    return split_tags(caption, delimiter=rules.delimiter, keep_count=0, separator=rules.separator).all


def _find_constant_tags(examined: Examination) -> Iterator[Finding]:
    for concept, images in examined.by_concept():
        if not concept.has_own_captions or (tagged := _read_tags(concept, images)) is None:
            continue
        for tag, number in sorted(tagged.counts.items()):
            share = number / len(tagged.tags)
            if share > CONSTANT_SHARE and tag not in tagged.first:  # the first one is the trigger word
                files = tuple(p for p, tags in tagged.tags.items() if tag not in tags)
                rest = " The files are those without it." if files else ""
                yield Finding(
                    files or (concept.folder,),
                    f"The tag {_quote(tag)} is in nearly all captions of the concept {concept.name}, so it becomes "
                    f"part of the concept.{rest}",
                    share * 100,
                    "% of the captions",
                    "Remove it if the concept is to include it; if it is a trigger word, put it first.",
                    "info",
                )


def _find_rare_tags(examined: Examination) -> Iterator[Finding]:
    for concept, images in examined.by_concept():
        if not concept.has_own_captions or (tagged := _read_tags(concept, images)) is None:
            continue
        for path, tags in tagged.tags.items():
            rare = sorted(tag for tag in tags if tagged.counts[tag] == 1)
            if not rare:
                continue
            named = ", ".join(map(_quote, rare[:_MAX_NAMED])) + (" and others" if len(rare) > _MAX_NAMED else "")
            yield Finding(
                (path,),
                f"Tags that no other image of the concept {concept.name} has: {named}.",
                len(rare),
                "tag" if len(rare) == 1 else "tags",
                "Check the spelling, use the same tag for the same thing, or remove it: one image teaches little.",
                "info",
            )


def _find_long(examined: Examination) -> Iterator[Finding]:
    for caption in examined.long_captions:
        is_too_long = caption.is_truncated or caption.num_tokens > USUAL_LIMIT_CHUNKS * caption.chunk_tokens
        chunks = "It is encoded in chunks; programs limited to one do not see"
        reader = "The model does not read" if caption.is_truncated else chunks
        yield Finding(
            caption.files,
            f"The caption is longer than {caption.chunk_tokens} tokens. {reader}: "
            f"{shorten(caption.beyond, max_chars=_MAX_CHARS)}",
            caption.num_tokens,
            "tokens",
            "Put the important words first, or shorten it.",
            "warning" if is_too_long else "info",
        )


def _quote(tag: str) -> str:
    return f'"{shorten(tag, max_chars=_MAX_CHARS)}"'


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith("it ") else text


MISSING_CAPTION = CheckSpec(
    "missing_caption",
    "Captions that are missing or not UTF-8",
    "Images without a caption, or with one that is not valid UTF-8.",
    _find_missing,
)
DUPLICATE_CAPTION = CheckSpec(
    "duplicate_caption", "Duplicate captions", "Images of a concept with the same caption.", _find_duplicates
)
CONSTANT_TAG = CheckSpec(
    "constant_tag", "Tags in nearly all captions", "Tags that do not distinguish the images.", _find_constant_tags
)
RARE_TAG = CheckSpec(
    "rare_tag", "Tags of a single image", "Tags that appear only once; often misspelled.", _find_rare_tags
)
LONG_CAPTION = CheckSpec(
    "long_caption", "Long captions", "Captions of more tokens than the text encoder reads at once.", _find_long
)
