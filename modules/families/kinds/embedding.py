"""Files of embeddings (textual inversion)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.record import FileKindSpec, Loads, loads_whole
from modules.families.published import ALL_PROGRAMS
from modules.families.registry import family_of, label_of, published_model, published_models
from modules.formats.adapter_names import EMB_PARAMS, EMP_PARAMS, OUTPUT_SUFFIX
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.program_table import PROGRAMS

_NO_OUTPUTS = "has no place for vectors at the output of a text encoder; OneTrainer does"
_UNMEASURED = "was not measured with embeddings of this model"
_NAMES = (EMB_PARAMS, EMP_PARAMS)
_VERSIONS = {name: program.version for name, program in PROGRAMS.items()}


def embedding_kind(header: CheckpointHeader) -> FileKind | None:
    """Return the file's kind if it is a textual-inversion embedding."""
    shapes = {n: s for n, s in header.shapes.items() if len(s) in (1, 2)}
    where = _where(shapes)
    by_model = {m.name: _shapes_of(m.embedding_tensors, shapes) for m in published_models()}
    architecture = header.metadata.get("modelspec.architecture", "").removesuffix("/textual-inversion")
    # The first model of those with most of the tensors, with fewest others, and of these the one in the metadata.
    model = max(
        published_models(),
        key=lambda m: (len(by_model[m.name]), -len(m.embedding_tensors), m.architecture_of() == architecture),
    ).name
    if by_model[model]:
        return _embedding(model, next(iter(by_model[model].values())), where)
    widths = {m.embedding_width: m.name for m in reversed(list(published_models())) if m.embedding_width}
    named = (
        s for n, s in shapes.items() if n.removesuffix(OUTPUT_SUFFIX) in _NAMES or n.startswith("string_to_param.")
    )
    single_shape = next(named, None)
    if single_shape is None and len(header.shapes) == 1:
        single_shape = next((s for s in shapes.values() if s and s[-1] in widths), None)
    return _embedding(widths.get(single_shape[-1], ""), single_shape, where) if single_shape else None


def _shapes_of(tensors: Iterable[str], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes in a file by the names of a model's tensors: of the input, or else of the output."""
    there = {name: shapes.get(name) or shapes.get(f"{name}{OUTPUT_SUFFIX}") for name in tensors}
    return {name: shape for name, shape in there.items() if shape}


def _where(names: Iterable[str]) -> str:
    """Return a phrase for where the vectors of a file are used; empty if only at the text encoder's input."""
    known = [n for n in names if n.removesuffix(OUTPUT_SUFFIX) in {*_NAMES, *_names_of_several()}]
    outputs = [n for n in known if n.endswith(OUTPUT_SUFFIX)]
    if not outputs:
        return ""
    return "the output" if len(outputs) == len(known) else "the input and the output"


def _names_of_several() -> set[str]:
    return {name for model in published_models() for name in model.embedding_tensors}


def _embedding(model: str, shape: tuple[int, ...], where: str) -> FileKind:
    tokens = shape[0] if len(shape) == 2 else 1
    label = f" for {label_of(model)}" if model else ""
    plural = "s" if tokens != 1 else ""
    return FileKind(
        "embedding",
        f"A textual-inversion embedding of {tokens} token{plural}{label}"
        f"{f', at {where} of the text encoder' if where else ''}.",
        family_of(model),
        model,
        facts={"tokens": str(tokens), "width": str(shape[-1] if shape else 0)} | ({"at": where} if where else {}),
    )


def _loads(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    if header is None:
        return ()
    if header.code:
        return tuple(
            loads_whole(p, False, "not safe to load: it contains code in addition to vectors") for p in ALL_PROGRAMS
        )
    if "at" in kind.facts:
        return tuple(loads_whole(p, False, _NO_OUTPUTS, version=_VERSIONS.get(p, "")) for p in ALL_PROGRAMS)
    if not kind.model:
        width = kind.facts.get("width", "")
        return tuple(loads_whole(p, None, f"unknown for vectors of width {width}") for p in ALL_PROGRAMS)
    model = published_model(kind.model)
    answers = _several(header, model.embedding_tensors) if len(model.embedding_tensors) > 1 else _one(header)
    if model.programs != ALL_PROGRAMS:  # a newer model: measured with diffusers alone
        answers |= {p: loads_whole(p, None, _UNMEASURED) for p in answers if p != "diffusers"}
    answers |= {p: loads_whole(p, False, why) for p, why in model.without_embeddings.items()}
    return tuple(replace(answers[p], version=_VERSIONS.get(p, "")) for p in model.programs)


def _several(header: CheckpointHeader, named: tuple[str, ...]) -> dict[str, Loads]:
    """Return which programs load vectors for several text encoders, each in a tensor with its name."""
    both = set(named) <= header.shapes.keys()
    note = "" if both else f"needs both {' and '.join(named)}"
    return {
        "ComfyUI": loads_whole("ComfyUI", True),
        "A1111": loads_whole("A1111", both, note),
        "Forge": loads_whole("Forge", both, note),
        "diffusers": loads_whole(
            "diffusers", False, "pass each tensor to load_textual_inversion separately, with a token"
        ),
    }


def _one(header: CheckpointHeader) -> dict[str, Loads]:
    """Return which programs load the vectors of one text encoder: A1111's form, or a file with a single tensor."""
    is_a1111 = header.container == "pickle" and header.has("string_to_param.")
    is_single = is_a1111 or len(header.shapes) == 1
    note = "" if is_single else "needs exactly one tensor"
    comfy = "" if is_single else "uses the first tensor"
    return {
        "ComfyUI": loads_whole("ComfyUI", True, comfy),
        "A1111": loads_whole("A1111", is_single, note),
        "Forge": loads_whole("Forge", is_single, note),
        "diffusers": _in_diffusers(header, is_a1111=is_a1111, is_single=is_single),
    }


def _in_diffusers(header: CheckpointHeader, *, is_a1111: bool, is_single: bool) -> Loads:
    """Return how diffusers' `load_textual_inversion` reads the file: A1111's name or the tensor's name is the token."""
    if not is_single:
        return loads_whole("diffusers", False, "needs exactly one tensor")
    if not is_a1111:
        token = next(iter(header.shapes))
        return loads_whole("diffusers", True, f"the token is {token}, the tensor's name, unless token= is passed")
    if "string_to_param.*" not in header.shapes or "name" not in header.values:
        return loads_whole("diffusers", False, "the file has no name or no vectors for *, as A1111 writes them")
    return loads_whole("diffusers", True, f"the token is {header.values['name']}, unless token= is passed")


EMBEDDING = FileKindSpec(
    name="embedding",
    label="Embedding",
    help="A textual-inversion embedding: trained vectors for a placeholder word.",
    detect=embedding_kind,
    loads=_loads,
    kept_as="embeddings",
)
