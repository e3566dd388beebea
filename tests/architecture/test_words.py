"""The vocabulary: code, messages and docs use the terms of the field, and none of the words that were retired for them.

A hit is fixed by using the term beside the pattern. A text that must keep a retired word stands in `ALLOWED`, with the
reason.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from modules.system.paths import PROGRAM_ROOT

ROOTS: tuple[str, ...] = (
    "ui",
    "modules",
    "trainer",
    "benchmarks",
    "demo/make",
    "launcher",
    "tests/ui",
    "docs",
    "training_presets",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "start-ui.sh",
    "start-ui.bat",
)

# Whole words in texts: strings with a space or a capital, docstrings, comments, documents.
WORDS = {
    r"pictures?": "image",
    r"(re)?paint(s|ed|er|ers|ing|ings)?": "sample, generate; inpainting",
    r"judg(e|es|ed|ing|ement)": "reward model; check",
    r"ratings?": "score, reward",
    r"resting": "offload device",
    r"stand-?ins?|small weights": "master weights, low-precision weights",
    r"rehears\w*|trial steps?": "dry run",
    r"showings|(a|each|every|one|per|this|that) showing": "sample index, concept repeats",
    r"movers?|witness(es)?": "sliced optimizer step; hook",
    r"stop after worse|num worse": "patience, bad evaluations",
    r"caption fit": "CLIP similarity",
    r"run chain": "denoising loop",
    r"tak(es|en|e|ing) in": "adds",
    r"says|tells|hears|heard|told|is said|unheard": "returns, reports, shows",
    r"asks for": "requires",
    r"(go|goes|went|gone|going) on": "resume, continue",
    r"br(oke|eaks|eak|oken) off|without a word|last word": "ended unexpectedly, failed",
    r"fault of the program|program made a mistake|faults?": "bug, internal error",
    r"mend(s|ed|ing)?": "fix",
    r"what has happened": "log",
    r"what (a|the) start will do": "preview",
    r"passed over": "skipped",
    r"knows no|no text in utf-8": "does not support; not valid UTF-8",
    r"(numbers?|values?) (that are|is) (?-i:none)": "NaN or infinite values",
    r"of no use": "not needed",
    r"(?<!there )(is|are) no (device|text|number|config|image|lora|adapter|model|file|folder|error)s?": "is not a",
    r"nobody|no one|somebody": "the active voice",
}

# Parts of names in code, between underscores or capitals.
NAMES = {
    r"(?<!user_)pictures?": "image",
    r"(re)?paint(s|ed|er|ers|ing)?": "sample, generate; inpaint",
    r"judges?|rates_by": "reward model",
    r"resting": "offload device",
    r"stand_ins?": "master weights",
    r"rehears\w*": "dry run",
    r"mover|witness(es)?": "sliced step, hooks",
    r"ends_window": "is_last_micro_batch",
    r"framed": "with_size_conditioning",
    r"num_worse|stop_after_worse": "num_bad, patience",
    r"told|tells?|hears?|heard": "report",
    r"(go|goes|going|went)_on": "resume, unpause",
    r"mend(s|ed)?": "fix",
}

# Labels of earlier versions.
LABELS = frozenset(
    """What the model predicts|Kind of model|Image model (UNet)|Picture encoder (VAE)|Weight type|Number format
Processor threads|Resting device|Keep the shape of pictures|Size step|Longest shape|Cache pictures|Cache captions
Re-read every picture|Learn from masked regions|Weight outside the mask|Steps without a mask
Same weight for small masks|Keep the rest as it was|Own pictures to paint into|Used for|Counted by|Pictures an epoch
Variations of pictures|Variations of captions|Seed of its changes|Own resolution|Turn and crop to the mask
Shrink the mask|Between tags|Tags that stay first|Leave out tags|Change capitals|What is trained|Trained layers
Learning rate times|Loss times|Clip gradients at|Broken steps in a row|Where float16 is too small
Keep converted weights|Trained 16-bit weights|Offset by the noise level|Lowest noise level|Highest noise level
Noise levels are drawn|Middle of the draws|Squared distance|Absolute distance|Log-cosh distance|Huber distance
Limit of Huber|Average of weights (EMA)|Fused back pass|Offload what checkpointing keeps|Share of steps
Steps that learn|Last steps|Rating aimed at|Names are patterns|Keep their length|Paint samples
Also before the first step|Also without the average|Keep the best|Stop early after|What has happened
What a start will do|Newest samples|What is lost, kept apart""".replace("\n", "|").split("|")
)


@dataclass(frozen=True, slots=True)
class Allowed:
    """A text that keeps a retired word: the beginning of its path, the text, the reason."""

    path: str
    text: str
    reason: str


ALLOWED = (
    Allowed("", "a picture of a", "captions that the demo model was trained on"),
    Allowed("ui/widgets/files/places.py", "pictures", "the name that systems give the folder"),
    Allowed("demo/make/model.py", "demo pictures", "the seed's name: another one would draw other images"),
    Allowed("modules/families/qwen_image/model.py", "picture {}: ", "the text before each image in the model's prompt"),
    Allowed("", "a painting of", "a caption template of textual inversion"),
    Allowed("", "no one", "a count: no one file"),
    Allowed("modules/rewards/models/hpsv3.py", "please provide a rating from", "the published prompt of HPSv3"),
    Allowed("modules/rewards/models/hpsv3.py", "provide the overall ratings of this image", "the same prompt"),
)

# Whatever can be a hit in a file, in one pattern: most files have none, and need not be parsed.
_MAY_BE_RETIRED = re.compile(
    rf"(?i)\b(?:{'|'.join((*WORDS, *map(re.escape, LABELS)))})\b".replace("(?-i:none)", "none")
)
_SUFFIXES = {".py", ".md", ".sh", ".bat"}


@dataclass(frozen=True, slots=True)
class Found:
    """A text or a name, and where it stands."""

    path: str
    line: int
    text: str


def _files(roots: tuple[str, ...]) -> Iterator[Path]:
    for root in roots:
        path = PROGRAM_ROOT / root
        yield from sorted(path.rglob("*")) if path.is_dir() else [path]


def texts(roots: tuple[str, ...]) -> Iterator[Found]:
    """Yield all texts that people read: strings, docstrings, comments, lines of documents, notes of presets."""
    for path in _files(roots):
        name = path.relative_to(PROGRAM_ROOT).as_posix()
        if path.suffix == ".py":
            yield from _texts_of_code(name, path.read_text(encoding="utf-8"))
        elif path.suffix in _SUFFIXES:
            lines = path.read_text(encoding="utf-8").splitlines()
            yield from (Found(name, number, line) for number, line in enumerate(lines, start=1))
        elif path.suffix == ".json" and name.startswith("training_presets"):
            yield Found(name, 1, json.loads(path.read_text(encoding="utf-8")).get("general", {}).get("notes", ""))


def _texts_of_code(name: str, source: str) -> Iterator[Found]:
    if not _MAY_BE_RETIRED.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_text(node.value):
            yield Found(name, node.lineno, node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Found(name, token.start[0], token.string)


def _is_text(value: str) -> bool:
    """Whether a string is a text for people, and not a key or a path."""
    return " " in value.strip() or bool(re.fullmatch(r"[A-Z][a-z]+[.…:]?", value))


def names(roots: tuple[str, ...]) -> Iterator[Found]:
    """Yield all names in code: of files, functions, classes, parameters, variables and attributes."""
    for path in _files(roots):
        if path.suffix != ".py":
            continue
        file = path.relative_to(PROGRAM_ROOT).as_posix()
        yield Found(file, 0, path.stem)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            line = getattr(node, "lineno", 0)
            for attribute in ("id", "attr", "name", "arg"):
                name = getattr(node, attribute, None)
                if isinstance(name, str):
                    yield Found(file, line, name)


def _is_allowed(found: Found, hit: str) -> bool:
    around = found.text.lower()
    return any(found.path.startswith(a.path) and hit.lower() in a.text and a.text in around for a in ALLOWED)


def retired_words(found: Found) -> list[str]:
    """Return the retired words of a text, with what to use."""
    hits = [
        (m.group(), use) for pattern, use in WORDS.items() for m in re.finditer(rf"(?i)\b(?:{pattern})\b", found.text)
    ]
    if found.text.strip() in LABELS:
        hits.append((found.text.strip(), "the label of the settings reference"))
    return [f"{found.path}:{found.line}: {hit!r} -> {use}" for hit, use in hits if not _is_allowed(found, hit)]


@cache
def _better_terms(name: str) -> tuple[str, ...]:
    """Return what to use for each retired part of a name; there are thirty times as many uses as names."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return tuple(use for pattern, use in NAMES.items() if re.search(rf"(?:^|_)(?:{pattern})(?:_|$)", snake))


def retired_names(found: Found) -> list[str]:
    """Return the retired parts of a name, with what to use."""
    return [f"{found.path}:{found.line}: {found.text} -> {use}" for use in _better_terms(found.text)]


def test_texts_use_the_terms_of_the_field() -> None:
    hits = [hit for found in texts(ROOTS) for hit in retired_words(found)]
    assert not hits, f"{len(hits)} retired words:\n" + "\n".join(hits)


def test_names_use_the_terms_of_the_field() -> None:
    hits = sorted({hit for found in names(ROOTS) for hit in retired_names(found)})
    assert not hits, f"{len(hits)} retired names:\n" + "\n".join(hits)


@pytest.mark.parametrize(
    ("text", "is_retired"),
    [
        ("Reads every picture.", True),
        ("Paint samples", True),
        ("The file asks for it.", True),
        ("The run goes on.", True),
        ("Inpainting masks", False),
        ("A picturesque image", False),
        ("a picture of a zog", False),
        ("Learning rate", False),
    ],
)
def test_the_pattern_finds_whole_words(text: str, is_retired: bool) -> None:
    assert bool(retired_words(Found("ui/x.py", 1, text))) is is_retired


@pytest.mark.parametrize(
    ("name", "is_retired"),
    [("_paint", True), ("JudgeSpec", True), ("num_judges", True), ("inpainting", False), ("follow_on", False)],
)
def test_the_pattern_finds_parts_of_names(name: str, is_retired: bool) -> None:
    assert bool(retired_names(Found("ui/x.py", 1, name))) is is_retired
