"""Single-file checkpoints: detected by the family's record, loadable if no weight is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.record import FileKindSpec, Loads, loads_whole
from modules.families.parts.single_file.models import configs_of_file, layouts, missing_names, original_names
from modules.families.parts.single_file.record import PartLayout
from modules.families.parts.single_file.sizes import has_published_size
from modules.families.registry import FAMILIES, all_files, published_model
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.checkpoint_table import CHECKPOINTS
from modules.formats.program_table import PROGRAMS
from modules.system.errors import DarkroomError


def checkpoint_kind(header: CheckpointHeader) -> FileKind | None:
    """Return the file's kind if a family recognises it as one of its models, or as the denoiser of one."""
    return next((kind for files in all_files() if (kind := files.checkpoint(header)) is not None), None)


def _loads(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    if header is None:
        return ()
    model = published_model(kind.model)
    programs = model.programs
    try:
        parts = layouts(kind.model, configs_of_file(kind.model, header.shapes, header.metadata))
    except DarkroomError as error:
        return tuple(loads_whole(p, None, error.message) for p in programs)
    # Older files leave out "text_model."; only diffusers does not support them.
    lacks = _num_missing(parts, header.shapes), _num_missing(parts, original_names(kind.model, header.shapes))
    if any(lacks):
        advice = "; choose a VAE there" if set(lacks[1]) == {"vae"} else ""
        return tuple(_incomplete(kind.model, p, lacks[0 if p == "diffusers" else 1], advice) for p in programs)
    if "scaled" in kind.facts:
        return tuple(loads_whole(p, None, "not measured with scaled float8") for p in programs)
    if not has_published_size(kind.model, header):
        facts = {p: CHECKPOINTS[p] for p in programs}
        return tuple(
            loads_whole(p, f.loads_other_sizes, f.size_note, version=PROGRAMS[p].version) for p, f in facts.items()
        )
    return tuple(_whole(p, kind, model.prediction_note(p, kind)) for p in programs)


def _whole(program: str, kind: FileKind, note: str) -> Loads:
    """Return whether a program loads a complete file, with a note on its prediction type."""
    complete, reason = CHECKPOINTS[program].exception(kind.variant, kind.prediction) or (True, note)
    return loads_whole(program, complete, reason, version=PROGRAMS[program].version)


def _num_missing(parts: Mapping[str, PartLayout], names: Iterable[str]) -> dict[str, int]:
    names = list(names)
    counts = {part: len(missing_names(layout, names)) for part, layout in parts.items()}
    return {part: count for part, count in counts.items() if count}


def _incomplete(model: str, program: str, lacks: Mapping[str, int], advice: str) -> Loads:
    if not lacks:
        return loads_whole(program, True)
    labels = FAMILIES[published_model(model).family].part_labels
    missing = ", ".join(f"{count} weights of the {labels[part]}" for part, count in lacks.items())
    return loads_whole(program, False, f"missing: {missing}{'' if program == 'diffusers' else advice}")


CHECKPOINT = FileKindSpec(
    name="checkpoint",
    label="Checkpoint",
    help="A whole model in one file.",
    detect=checkpoint_kind,
    uses=frozenset({"base model", "denoiser", "VAE"}),
    forms=("single", "folder"),
    opener="modules.families.kinds.conversion:open_single_file",
    writer="modules.families.kinds.conversion:write_model",
    notes="modules.families.kinds.conversion:notes",
    loads=_loads,
    kept_as="checkpoints",
)
