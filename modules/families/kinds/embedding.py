"""Textual-inversion embeddings (formats.md 5.4). Torch-free."""

from __future__ import annotations

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.record import FileKindSpec, Loads
from modules.families.registry import family_of, label_of, published_models
from modules.formats.checkpoint_header import CheckpointHeader


def embedding_kind(header: CheckpointHeader) -> FileKind | None:
    """Return the file's kind if it is a textual-inversion embedding."""
    shapes = {n: s for n, s in header.shapes.items() if len(s) in (1, 2)}
    for model in published_models():
        if found := [shapes[n] for n in model.embedding_tensors if n in shapes]:
            return _embedding(model.name, found[0])
    widths = {m.embedding_width: m.name for m in reversed(list(published_models())) if m.embedding_width}
    found_shape = next((s for n, s in shapes.items() if n == "emb_params" or n.startswith("string_to_param.")), None)
    if found_shape is None and len(header.shapes) == 1:
        found_shape = next((s for s in shapes.values() if s and s[-1] in widths), None)
    return _embedding(widths.get(found_shape[-1], ""), found_shape) if found_shape else None


def _embedding(model: str, shape: tuple[int, ...]) -> FileKind:
    tokens = shape[0] if len(shape) == 2 else 1
    label = f" for {label_of(model)}" if model else ""
    plural = "s" if tokens != 1 else ""
    return FileKind(
        "embedding",
        f"A textual-inversion embedding of {tokens} token{plural}{label}.",
        family_of(model),
        model,
        facts={"tokens": str(tokens), "width": str(shape[-1] if shape else 0)},
    )


def _loads(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    if header is None:
        return ()
    named = next((m.embedding_tensors for m in published_models() if m.name == kind.model), ())
    if named:
        both = set(named) <= header.shapes.keys()
        note = "" if both else f"needs both {' and '.join(named)}"
        return (
            Loads("diffusers", False, "needs each tensor passed separately, with a token"),
            Loads("ComfyUI", True),
            Loads("A1111", both, note),
            Loads("Forge", both, note),
        )
    single = len(header.shapes) == 1 or header.container == "pickle"
    note = "" if single else "needs exactly one tensor"
    token = "" if header.container == "pickle" else "the token is the tensor's name, unless token= is passed"
    return (
        Loads("diffusers", True, token),
        Loads("ComfyUI", True),
        Loads("A1111", single, note),
        Loads("Forge", single, note),
    )


EMBEDDING = FileKindSpec(
    name="embedding",
    label="Embedding",
    help="A textual-inversion embedding: trained vectors for a placeholder word.",
    detect=embedding_kind,
    loads=_loads,
)
