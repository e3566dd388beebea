"""Checks of captions (settings that cannot work, missing captions, other encodings, long texts) and of embeddings.

Tokens are counted with the model's own tokenizer and without torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.config.schema import Config
from modules.config.usage import embeddings_in_use
from modules.data.captions.operations import has_single_brace
from modules.data.captions.rules import faults_of
from modules.data.captions.settings import lines_in_use
from modules.data.dataset import Dataset
from modules.data.doctor.caption_checks import USUAL_LIMIT_CHUNKS
from modules.data.scan import ENCODINGS, fault_of_caption
from modules.data.source_image import SourceImage
from modules.estimate.architecture import architecture_of
from modules.families.kinds.identify import identify
from modules.families.parts.prompt_weights import without_weights
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.file_errors import plain_reason
from modules.system.paths import from_root
from modules.system.problem import Problem, agree, count, quote, shorten
from trainer.preflight.model_files import downloaded_folder, kind_of


def read_tokenizer(config: Config) -> Any:
    """Return the tokenizer that counts the tokens of captions. Raises DarkroomError if it cannot be read."""
    folder = tokenizer_folder(config)
    try:
        return load_factory(config.family.text.tokenizer)(folder)
    except Exception as error:  # the library raises a plain Exception for a damaged vocabulary
        message = f"The tokenizer of the base model in {folder} cannot be read: {plain_reason(error)}."
        raise DarkroomError(message, advice="Download or copy the model again.") from error


def counting_tokenizer(config: Config) -> Any | None:
    """Return `read_tokenizer`'s tokenizer; None if it comes with a base model that is not on this machine yet."""
    if not config.family.text.ships_vocabulary and tokenizer_folder(config) is None:
        return None
    return read_tokenizer(config)


def tokens_read(config: Config) -> int:
    """Return how many tokens of a caption the base model reads at once (`TextSpec.chunk_tokens`)."""
    model, spec = config.model, config.family
    found = architecture_of(model.base_model.strip(), spec.name) if model.base_model.strip() else None
    denoiser = {} if found is None else found.configs.get(spec.denoiser.name, {})
    return model.family.tokens_read(spec.text.chunk_tokens, denoiser)


def tokenizer_folder(config: Config) -> Path | None:
    """Return the tokenizer folder of a local or downloaded base model; None if this machine has none."""
    tokenizers = config.family.tokenizers
    if not tokenizers or not config.model.base_model.strip():
        return None
    counting = tokenizers.get(config.family.text.counted_by) or next(iter(tokenizers.values()))
    for model in (from_root(config.model.base_model), downloaded_folder(config)):
        folder = None if model is None else model / counting
        if folder is not None and kind_of(folder) == "folder":
            return folder
    return None


_MAX_CHARS = 200
_USUAL_CHARACTERS = 3  # of a token, at least: few captions have shorter ones
_SINGLE_BRACE = "a { or } without its counterpart"

CaptionFinding = tuple[str, str]
"""A file, an image or its caption file, and the finding about its caption."""


@dataclass(frozen=True, slots=True)
class CaptionsReport:
    """The problems of all captions, and the findings file by file."""

    problems: tuple[Problem, ...] = ()
    findings: tuple[CaptionFinding, ...] = ()


def problems_of_caption_settings(config: Config) -> Iterator[Problem]:
    """Yield the caption settings of enabled concepts that cannot work: patterns, modes, lists."""
    for index, concept in enumerate(config.concepts):
        if concept.enabled:
            for field, message in faults_of(concept.text):
                yield Problem(f"concepts.{index}.text.{field}", message)


def report_on_captions(config: Config, training: Dataset, validation: Dataset) -> CaptionsReport:
    """Return the captions that are missing, empty, in another encoding, or longer than one chunk of tokens, and
    those whose wildcards are not closed.

    A longer caption is encoded in chunks (`modules/families/parts/clip_tokens.py`), or truncated by a family that reads
    no more. Missing and empty ones are counted with the images (`problems_of_images`).
    """
    images = [e.image for d in (training, validation) for e in d.examples]
    with_braces = dict(_single_braces(training, validation))
    problems = [*_encodings(images), *_problems_of_braces(with_braces)]
    findings = [*_faults(images), *((str(f), f"{_SINGLE_BRACE}: {_shorten(t)}") for f, t in with_braces.items())]
    texts = _texts_of(config, training)
    if texts:
        try:
            tokenizer = counting_tokenizer(config)
        except DarkroomError as error:
            problems.append(Problem("model.base_model", error.message, advice=error.advice))
            tokenizer = None
        else:
            problems += _uncounted_captions(texts, tokens_read(config)) if tokenizer is None else ()
        if tokenizer is not None:
            chunk_tokens, truncates = tokens_read(config), config.family.text.truncates
            lengths = {text: _num_tokens(text, tokenizer, chunk_tokens) for text in sorted(texts)}
            problems += _long_ones(list(lengths.values()), tokenizer, list(lengths), chunk_tokens, truncates=truncates)
            findings += _cut_texts(texts, lengths, tokenizer, chunk_tokens)
    return CaptionsReport(tuple(problems), tuple(findings))


def _num_tokens(text: str, tokenizer: Any, chunk_tokens: int) -> int:
    """Return the number of tokens of a text; of one that cannot fill a chunk, only an upper limit."""
    is_short = text.isascii() and len(text) < chunk_tokens  # a token has a character, and T5 begins with another one
    return len(text) if is_short else int(tokenizer.count(text))


def _uncounted_captions(texts: Collection[str], num_tokens: int) -> Iterator[Problem]:
    """Yield that long captions may be too long for a model whose tokenizer is not on this machine yet."""
    limit = _USUAL_CHARACTERS * num_tokens
    if num_long := sum(len(one) > limit for one in texts):
        yield Problem(
            "concepts",
            f"{num_long:,} of {count(len(texts), 'caption')} {agree(num_long, 'has')} more than {limit:,} "
            f"characters and may be longer than the {num_tokens} tokens that the model reads. The check counts "
            "them when its tokenizer has been downloaded.",
            "info",
        )


def _texts_of(config: Config, training: Dataset) -> dict[str, SourceImage]:
    """Return each text that is trained, as long as it gets, with the first image it is from."""
    texts: dict[str, SourceImage] = {}
    for example in training.examples:
        for given in training.longest_texts(example, run_seed=config.general.seed):
            text = without_weights(given) if config.model.family.reads_weights else given
            if text:
                texts.setdefault(text, example.image)
    return texts


def _faults(images: Sequence[SourceImage]) -> Iterator[CaptionFinding]:
    for image in images:
        if image.caption_fault:
            yield str(image.path), fault_of_caption(image)


def _encodings(images: Sequence[SourceImage]) -> Iterator[Problem]:
    files = {i.caption_file: i.caption_fault for i in images if i.caption_fault in ENCODINGS and i.caption_file}
    if not files:
        return
    first, fault = next(iter(files.items()))
    verb = "is not valid UTF-8 and is" if len(files) == 1 else "are not valid UTF-8 and are"
    yield Problem(
        "concepts",
        f"{count(len(files), 'caption file')} {verb} read in another encoding; the first is {first.name} "
        f"({ENCODINGS[fault]}).",
        "warning",
        "Check the captions, and save the files as UTF-8.",
    )


def _single_braces(*datasets: Dataset) -> Iterator[tuple[Path, str]]:
    """Yield the captions with wildcards that have a brace without its counterpart, each with its file."""
    for dataset in datasets:
        for example in dataset.examples:
            image, rules = example.image, dataset.concepts[example.concept].captions
            if rules.wildcards:
                for line in lines_in_use(len(image.captions), rules.choice) if image.captions else ():
                    if has_single_brace(image.captions[line]):
                        yield image.caption_file or image.path, image.captions[line]


def _problems_of_braces(captions: dict[Path, str]) -> Iterator[Problem]:
    if not captions:
        return
    file, text = next(iter(captions.items()))
    yield Problem(
        "concepts",
        f"{count(len(captions), 'caption file')} {agree(len(captions), 'has')} {_SINGLE_BRACE}, which is trained "
        f"as it is; the first is {file.name}: {_shorten(text)}",
        "warning",
        "Close the wildcard, as in {red|blue}, or write \\{ or \\} for a plain brace.",
    )


def _shorten(text: str) -> str:
    return shorten(text, max_chars=_MAX_CHARS)


def _cut_texts(
    texts: dict[str, SourceImage], lengths: dict[str, int], tokenizer: Any, chunk_tokens: int
) -> Iterator[CaptionFinding]:
    """Yield the texts of more than one chunk, with the part that is not read if there is only one."""
    for text, image in texts.items():
        if lengths[text] > chunk_tokens:
            rest = _shorten(tokenizer.beyond(text, chunk_tokens))
            file = str(image.caption_file or image.path)
            yield file, f"{lengths[text]} tokens; beyond the first {chunk_tokens}: {rest}"


def _long_ones(
    lengths: Sequence[int], tokenizer: Any, captions: Sequence[str], chunk_tokens: int, *, truncates: bool
) -> Iterator[Problem]:
    longest = max(lengths)
    if longest <= chunk_tokens:
        return
    if truncates:
        num_long = sum(n > chunk_tokens for n in lengths)
        yield Problem(
            "concepts",
            f"{num_long:,} of {count(len(lengths), 'caption')} {agree(num_long, 'is')} longer than the "
            f"{chunk_tokens} tokens that the model reads. The longest has {longest:,}; what is beyond is not learned.",
            "warning",
            "Put the important words first, or shorten the captions.",
        )
        return
    usual_limit_tokens = USUAL_LIMIT_CHUNKS * chunk_tokens
    num_long, num_too_long = (sum(n > limit for n in lengths) for limit in (chunk_tokens, usual_limit_tokens))
    chunks = len(tokenizer.chunks(captions[lengths.index(longest)]))
    are, have = agree(num_long, "is"), agree(num_too_long, "has")
    they_are = "it is" if num_long == 1 else "they are"
    message = (
        f"{num_long:,} of {count(len(lengths), 'caption')} {are} longer than the {chunk_tokens} tokens of one text "
        f"encoder chunk. Nothing is truncated: {they_are} encoded in several chunks (the longest, {longest:,} tokens, "
        f"in {chunks}). Programs limited to {chunk_tokens} tokens only see the beginning."
    )
    if num_too_long:
        message += f" {num_too_long:,} {have} more than {usual_limit_tokens} tokens, the limit of many programs."
    advice = "Put the important words first, or shorten the captions."
    yield Problem("concepts", message, "warning" if num_too_long else "info", advice)


# Checks of embeddings before a run: placeholders that are words already, and files that are not embeddings.
#
# Placeholders that are doubled or in no caption are found with the captions (`companions.py`).
_MAX_CHARS_OF_NAME = 200


def problems_of_embeddings(config: Config, *, is_new: bool) -> Iterator[Problem]:
    """Yield problems with the placeholders and files of embeddings; a resumed run has its own copies of the files."""
    if not embeddings_in_use(config):
        return
    yield from _existing_tokens(config)
    for index, word in enumerate(config.embeddings.words):
        if word.file.strip() and is_new:
            yield from _file(word.file.strip(), f"embeddings.words.{index}.file")


def _existing_tokens(config: Config) -> Iterator[Problem]:
    """Yield a warning for each placeholder that is a single token of the vocabulary."""
    try:
        tokenizer = read_tokenizer(config)
    except DarkroomError:  # the check of the captions reports it
        return
    for index, word in enumerate(config.embeddings.words):
        if word.placeholder.strip() and tokenizer.count(word.placeholder) == 1:
            yield Problem(
                f"embeddings.words.{index}.placeholder",
                f"{quote(word.placeholder)} is a word that the text encoder already knows. The embedding replaces it "
                "in every caption and prompt.",
                "warning",
                "Choose a placeholder that is not a real word, such as <my-word>.",
            )


def _file(name: str, path: str) -> Iterator[Problem]:
    kind = identify(from_root(name))
    text = shorten(name, max_chars=_MAX_CHARS_OF_NAME)
    if kind.facts.get("defect") == "missing":
        yield Problem(path, f"{text} does not exist.", advice="Choose an embedding, or leave it empty for a new one.")
    elif kind.kind != "embedding":
        yield Problem(
            path,
            kind.explain(f"{text} is not an embedding."),
            advice="Choose an embedding, or leave it empty for a new one.",
        )
    else:
        tokens = count(int(kind.facts["tokens"]), "token")
        yield Problem(path, f"The embedding continues {Path(name).name}, which has {tokens}.", "info")
