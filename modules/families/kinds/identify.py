"""Identifies a file or folder from its headers, in a fraction of a second, and names the programs that load it.

Weights are not read, pickles are not run, and nothing raises: the sentence of a broken or unknown file explains what is
wrong. Each kind has its own record in this folder; each family describes its files.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.folder import folder_kind
from modules.families.kinds.record import Loads, loads_whole
from modules.families.kinds.registry import FILE_KINDS
from modules.families.published import ALL_PROGRAMS
from modules.formats.checkpoint_header import CheckpointHeader, read_checkpoint_header
from modules.formats.headers import UnreadableFileError
from modules.formats.pickle_header import unsafe_sentence
from modules.system.file_errors import plain_reason
from modules.system.problem import count


def identify(path: Path) -> FileKind:
    """Return the kind of a file or folder. Never raises: an unreadable file has the kind "broken"."""
    return identify_with_header(path)[0]


def identify_with_header(path: Path) -> tuple[FileKind, CheckpointHeader | None]:
    """Return the kind of a file or folder, and the header of a readable file. Never raises."""
    try:
        if path.is_dir():
            return folder_kind(path), None
        header = read_checkpoint_header(path)
        return identify_header(header), header
    except UnreadableFileError as error:
        return _unreadable(error), None
    except OSError as error:
        return FileKind("broken", f"{path} cannot be read: {plain_reason(error)}.", facts={"defect": "missing"}), None


def identify_header(header: CheckpointHeader) -> FileKind:
    """Return the kind of a file with this header."""
    detectors = (spec.detect for spec in FILE_KINDS.values() if spec.detect is not None)
    kind = next((kind for detect in detectors if (kind := detect(header)) is not None), None)
    if kind is None:
        kind = _unknown(header)
    if header.container == "safetensors" and header.path.suffix.lower() in (".ckpt", ".pt", ".pth", ".bin"):
        kind = dataclasses.replace(kind, facts={**kind.facts, "suffix": "a safetensors file with another suffix"})
    if problem := header.scales.problem:
        kind = dataclasses.replace(kind, problem=problem)
    if header.code:
        sentence = f"{kind.sentence} {unsafe_sentence(header.path.name, header.code)}"
        facts = {**kind.facts, "code": ", ".join(name[:80] for name in header.code[:5])}
        kind = dataclasses.replace(kind, sentence=sentence, facts=facts)
    return kind


def _unknown(header: CheckpointHeader) -> FileKind:
    if not header.shapes:
        return FileKind("unknown", f"{header.path.name} contains no tensors.")
    first = sorted(header.shapes)[0][:80]
    return FileKind(
        "unknown",
        f"{header.path.name} contains {count(len(header.shapes), 'tensor')} of an unknown model; one is {first!r}.",
        facts={"tensors": str(len(header.shapes))},
    )


def _unreadable(error: UnreadableFileError) -> FileKind:
    return FileKind("broken", str(error), facts={"defect": error.defect})


_OF_GGUF = {
    "A1111": "does not read GGUF",
    "ComfyUI": "with the nodes of ComfyUI-GGUF",
    "diffusers": "by from_single_file, with a GGUFQuantizationConfig",
}


def who_loads_file(path: Path) -> tuple[FileKind, tuple[Loads, ...]]:
    """Return the kind of a file or folder and which programs load it, for the report after a save. Never raises."""
    kind, header = identify_with_header(path)
    return kind, who_loads(header, kind)


def who_loads(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    """Return, for each program, whether it loads a file; empty if nothing is known about such files.

    `header` is None for a folder.
    """
    if header is not None and header.container == "gguf" and kind.family:
        return tuple(loads_whole(p, False if p == "A1111" else None, _OF_GGUF.get(p, "")) for p in ALL_PROGRAMS)
    loads = FILE_KINDS[kind.kind].loads(header, kind)
    if header is not None and header.code:
        return tuple(replace(x, loads="none", note="not safe to load") for x in loads)
    return loads
