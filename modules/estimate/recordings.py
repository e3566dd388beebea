"""The recordings of a model's passes: shipped for published models, and kept for the shapes that were traced here.

The name of a file contains a digest of everything that its recordings depend on besides the libraries: the shape of the
part, and the code that traces it. So the recordings of another version of the tracer are never read.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from modules.families.spec import FamilySpec, PartSpec
from modules.memory.recording import Recording, from_text, to_text
from modules.system.atomic import write_text
from modules.system.paths import PROGRAM_ROOT, recordings_dir

PassesOfPart = Mapping[str, Recording]
"""The recordings of a part's passes: "forward", or "encode" and "decode"."""

SHIPPED = PROGRAM_ROOT / "modules" / "estimate" / "shipped"
_TRACER = (
    "modules.memory.trace",
    "modules.memory.autocast",
    "modules.memory.pass_events",
    "modules.memory.recording",
    "modules.estimate.tracing",
    "modules.families.parts.fused_norms",
    "modules.families.parts.traced_passes",  # which passes of families use, too
)
_PACKAGES = ("torch", "diffusers", "transformers")
# Keys of configs that do not change a pass: where a config comes from, and numbers that only scale values.
_IRRELEVANT_KEYS = frozenset(
    [
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "dropout",
        "dtype",
        "eos_token_id",
        "force_upcast",
        "initializer_factor",
        "initializer_range",
        "latents_mean",
        "latents_std",
        "mid_block_add_attention",
        "model_type",
        "pad_token_id",
        "sample_size",
        "scaling_factor",
        "shift_factor",
        "torch_dtype",
        "transformers_version",
        "upcast_attention",
    ]
)


def recordings_of(spec: FamilySpec, configs: Mapping[str, Mapping[str, Any]]) -> dict[str, PassesOfPart]:
    """Return the recordings of the parts whose shape was traced before, by part."""
    known = {part.name: _known_passes(spec, part, configs[part.name]) for part in spec.parts}
    return {name: recordings for name, recordings in known.items() if recordings is not None}


def perceptual_recording() -> Recording:
    """Return the recording of the perceptual distance LPIPS."""
    return _read(perceptual_file())["forward"]


def perceptual_file() -> Path:
    """Return the shipped file with the recording of the perceptual distance."""
    return SHIPPED / "perceptual.json"


def shipped_file(spec: FamilySpec, part: PartSpec, config: Mapping[str, Any]) -> Path:
    """Return the file with the recordings of a part of this shape, if they ship with the program."""
    return SHIPPED / f"{part.class_name}-{shape_key(spec, part, config)}.json"


def kept_file(spec: FamilySpec, part: PartSpec, config: Mapping[str, Any]) -> Path:
    """Return the file in which recordings of a part of this shape are kept, for the present libraries."""
    return recordings_dir() / _versions() / f"{part.class_name}-{shape_key(spec, part, config)}.json"


def keep(file: Path, recordings: PassesOfPart) -> None:
    """Write the recordings of a part."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, to_text(recordings))


def shape_key(spec: FamilySpec, part: PartSpec, config: Mapping[str, Any]) -> str:
    """Return a hash of everything that the recordings of a part depend on besides the libraries."""
    shape = {k: v for k, v in config.items() if not k.startswith("_") and k not in _IRRELEVANT_KEYS and v is not None}
    model = part.model
    code = [*map(_digest, _TRACER), passes_digest(model.passes)]
    facts = [code, model.reference, model.passes, model.transformer_blocks, model.other_blocks]
    factor = spec.latents.factor
    latents = [factor if isinstance(factor, int) else str(factor), spec.latents.channels]
    return hashlib.sha256(json.dumps([facts, latents, shape], sort_keys=True).encode()).hexdigest()[:20]


@cache
def _versions() -> str:
    """Return the versions of the libraries, cached: reading them takes 10 ms, several times in each check of a run."""
    return "-".join(version(package) for package in _PACKAGES)


@cache
def passes_digest(passes: str) -> str:
    """Return a digest of the source of a function, "module:name", and of what it uses of its own module.

    So the rest of a family's module can change without making recordings stale.
    """
    module, _, name = passes.partition(":")
    source = _source(module)
    definitions = {name: node for node in ast.parse(source).body for name in _names_defined(node)}
    used: list[ast.stmt] = []
    waiting = [name]
    while waiting:
        node = definitions.get(waiting.pop())
        if node is not None and node not in used:
            used.append(node)
            waiting += sorted({inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)})
    texts = [
        ast.get_source_segment(source, piece)
        for node in sorted(used, key=lambda node: node.lineno)
        for piece in (*_decorators(node, module), node)
    ]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _decorators(node: ast.stmt, module: str) -> Sequence[ast.expr]:
    """Return the decorators of a function or class, which are not in its source; none in modules that count anyway."""
    return getattr(node, "decorator_list", ()) if module not in _TRACER else ()


def _names_defined(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module defines, unless it imports them."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


@cache
def _digest(module: str) -> str:
    """Return a digest of a module's source, the same with any line endings."""
    return hashlib.sha256(_source(module).encode()).hexdigest()


def _source(module: str) -> str:
    return (PROGRAM_ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")


def _known_passes(spec: FamilySpec, part: PartSpec, config: Mapping[str, Any]) -> PassesOfPart | None:
    for file in (shipped_file(spec, part, config), kept_file(spec, part, config)):
        if file.is_file():
            try:
                return _read(file)
            except (OSError, ValueError, KeyError, TypeError, IndexError):
                continue  # damaged: it is traced again
    return None


@lru_cache(maxsize=64)
def _read(file: Path) -> PassesOfPart:
    return from_text(file.read_text(encoding="utf-8"))
