"""The digests of the images and captions of concepts: by them a recipe identifies the data of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain
from json.encoder import encode_basestring_ascii
from pathlib import Path

from modules.data.cache.digests import DigestIndex
from modules.data.cache.stat_index import StatedFile
from modules.data.dataset import ConceptFacts, Dataset
from modules.data.example import Example
from trainer.run_folder.recipe import MAX_LISTED, ConceptImages

_AT_ONCE = 5000  # images
_MAX_READ_BYTES = 2_000_000_000  # of files whose digest no cache needed
_CONTENT_CHARS, _CAPTION_CHARS = 16, 8


def digests_of_concepts(datasets: Sequence[Dataset], cache_dir: Path | None) -> tuple[ConceptImages, ...]:
    """Return the images of the concepts of datasets, with digests of their content and captions.

    The digests of files are those that the caches of the run have asked for: a million images take seconds, and none is
    read again. Files that no cache needed are read if they are few; otherwise their size stands for their content.
    """
    index = DigestIndex(cache_dir)
    is_listed = sum(len(dataset.examples) for dataset in datasets) <= MAX_LISTED
    unread = [file for dataset in datasets for file in _unread(dataset, index)] if is_listed else []
    if unread and sum(file.size_bytes for file in unread) <= _MAX_READ_BYTES:
        for file in unread:
            try:
                index.digest(file.path, size_bytes=file.size_bytes, mtime_ns=file.mtime_ns)
            except OSError:  # gone since the scan: the run itself reports it
                continue
        index.save()
    return tuple(
        _of_concept(dataset, concept, index, is_listed=is_listed)
        for dataset in datasets
        for concept in dataset.concepts
    )


def _unread(dataset: Dataset, index: DigestIndex) -> Iterator[StatedFile]:
    for first in range(0, len(dataset.examples), _AT_ONCE):
        files = [file for example in dataset.examples[first : first + _AT_ONCE] for file in _files_of(example)]
        yield from (file for file, known in zip(files, index.known_digests(files), strict=True) if known is None)


def _files_of(example: Example) -> list[StatedFile]:
    """Return the files that an example consists of, none for a prompt without an image."""
    image = example.image
    if not image.has_image:
        return []
    others = (image.rejected, example.mask, *(file for _, file in sorted(example.input_files.items())))
    return [image, *(file for file in others if file is not None)]


def _of_concept(dataset: Dataset, concept: ConceptFacts, index: DigestIndex, *, is_listed: bool) -> ConceptImages:
    whole, num_by_size, images = hashlib.blake2b(digest_size=20), 0, dict[str, str]()
    end = concept.first_example + concept.num_examples
    for first in range(concept.first_example, end, _AT_ONCE):
        examples = dataset.examples[first : min(first + _AT_ONCE, end)]
        files = [_files_of(example) for example in examples]
        known = iter(index.known_digests(list(chain.from_iterable(files))))
        for example, of_example in zip(examples, files, strict=True):
            digests = [next(known) or f"{file.size_bytes} bytes" for file in of_example]
            num_by_size += any(digest.endswith(" bytes") for digest in digests)
            content = digests[0] if len(digests) == 1 else _digest_of(digests)
            captions = _digest_of(list(example.image.captions))
            whole.update(_as_json([example.name, content, captions]))
            if is_listed:
                images[example.name] = f"{content[:_CONTENT_CHARS]} {captions[:_CAPTION_CHARS]}"
    return ConceptImages(concept.name, concept.kind, concept.num_examples, whole.hexdigest(), num_by_size, images)


def _digest_of(texts: Sequence[str]) -> str:
    return hashlib.blake2b(_as_json(texts), digest_size=20).hexdigest()


def _as_json(texts: Sequence[str]) -> bytes:
    """Return texts as `json.dumps` writes a list of them, which takes five times as long for short ones."""
    return f"[{', '.join(map(encode_basestring_ascii, texts))}]".encode()
