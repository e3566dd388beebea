"""Checks of the parts that are published apart from their models: that there are files of them."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.quantized_parts import own_file
from modules.config.schema import Config
from modules.families.kinds.file_kind import FileKind
from modules.families.registry import files_of
from modules.families.separate_parts import advice_for, lack_of
from modules.families.spec import PartSpec
from modules.system.paths import from_root
from modules.system.problem import Problem, Severity, cut
from trainer.preflight.part_files import path_of


def problems_of_separate_parts(config: Config, found: FileKind | None) -> Iterator[Problem]:
    """Yield which parts the base model, of the kind `found` if it is here, lacks, and which files have no tokenizer."""
    name = config.model.base_model.strip()
    for part in (p for p in config.family.in_base_model.parts if p.published_in):
        if file := own_file(config, part):
            if not (from_root(name) / part.tokenizer_folder).is_dir():
                yield from _without_tokenizer(part, file)
        elif part.name in found.without if found is not None else _is_by_publisher(config, name):
            severity: Severity = "warning" if found is None else "error"  # a repository that is not here yet
            yield Problem(path_of(part), lack_of(part, cut(name, max_chars=200)), severity, advice_for(part))


def _is_by_publisher(config: Config, repository: str) -> bool:
    """Return whether a repository is of the family's publisher, whose models all lack these parts."""
    owners = {model.repository.partition("/")[0] for model in files_of(config.family.name).models}
    return repository.partition("/")[0] in owners - {""}


def _without_tokenizer(part: PartSpec, file: str) -> Iterator[Problem]:
    if from_root(file).is_file() and not (from_root(file).parent / "tokenizer.json").is_file():
        message = f"There is no tokenizer.json next to {cut(file, max_chars=200)}, the file of {part.label}."
        yield Problem(path_of(part), message, advice=f"Copy it there from the repository {part.published_in[0]}.")
