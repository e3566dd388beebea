"""The layers of a model that adapter files can change, found by the names and the shapes in a file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from modules.formats.adapter_forms import DENOISER, Layout, Naming, split_layer
from modules.formats.adapter_types import ALPHA, Shape, Shapes, adapter_types

Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class AdapterTarget:
    """A layer of a model: the part's name, the layer's dotted path in files, and the shape of its weight.

    `paths` are its dotted paths by layout, `path` among them. kohya's trainers name it by `prefix` and the path of
    `kohya_layout`.

    A matrix that only files have is a target with `pieces`, the layers of the model whose weights are its rows, in
    order. `swapped`: it has one piece, and the halves of the rows are in the other order there (`fused_layers`).
    `is_only_read`: files of other programs have the matrix; our files have its pieces.
    """

    part: str
    path: str
    weight: Shape
    paths: Mapping[Layout, str]
    prefix: str
    kohya_layout: Layout
    pieces: tuple[AdapterTarget, ...] = ()
    swapped: bool = False
    is_only_read: bool = False

    @property
    def kohya_path(self) -> str:
        """Its dotted path in the layout of kohya's files for this model."""
        return self.paths[self.kohya_layout]

    @property
    def kohya_name(self) -> str:
        """Its name in kohya's files for this model, and in ours."""
        return f"{self.prefix}{_flat(self.kohya_path)}"

    @property
    def is_text(self) -> bool:
        """Whether it is a layer of a text encoder: diffusers names these parts "text_encoder" and a number."""
        return self.part.startswith("text_encoder")

    @property
    def is_norm(self) -> bool:
        """Whether it is a norm."""
        return len(self.weight) == 1


@dataclass(frozen=True, slots=True)
class AdapterTargets:
    """All layers of a model that files can change, also by the part in prefixes and the path with underscores.

    `matrices` are the matrices of our files with the weights of several layers (`AdapterTarget.pieces`). `renamed`
    are the parts and paths of layers that ComfyUI's checkpoints name otherwise than both diffusers and the original
    layout, or have in a matrix of that layout.
    """

    all: tuple[AdapterTarget, ...]
    by_name: Mapping[Name, tuple[AdapterTarget, ...]]
    matrices: tuple[AdapterTarget, ...] = ()
    renamed: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, targets: Iterable[AdapterTarget], matrices: Iterable[AdapterTarget] = ()) -> AdapterTargets:
        """Return the targets by name in every layout, with and without their part."""
        every, matrices = tuple(targets), tuple(matrices)
        by_name: dict[Name, tuple[AdapterTarget, ...]] = {}
        for target in (*every, *matrices):
            names = dict.fromkeys(_flat(path) for path in target.paths.values())
            place = target.part if target.is_text else DENOISER
            for key in ((part, name) for part in (place, "") for name in names):
                by_name[key] = (*by_name.get(key, ()), target)
        renamed = {
            (t.part, t.path) for t in every if _flat(t.paths.get("comfyui", t.kohya_path)) != _flat(t.kohya_path)
        }
        renamed |= {(p.part, p.path) for matrix in matrices if matrix.is_only_read for p in matrix.pieces}
        written = tuple(matrix for matrix in matrices if not matrix.is_only_read)
        return cls(every, by_name, written, frozenset(renamed))

    def find(self, layer: str, shapes: Shapes) -> AdapterTarget | None:
        """Return the layer of the model, or the matrix, that a layer of a file changes; None if the model has none.

        `layer` is its name in the file and `shapes` are the shapes of its factors by kohya's names. They decide if
        the name does not tell which text encoder it is for.
        """
        return self.find_by(name_of(layer), shapes)

    def find_by(self, name: Name, shapes: Shapes) -> AdapterTarget | None:
        """Like `find`, with the layer's `name_of`, which a caller that looks in several models computes once."""
        targets = self.by_name.get(name, ())
        return next((t for t in targets if fits(shapes, t.weight)), targets[0] if targets else None)


def _flat(path: str) -> str:
    return path.replace(".", "_")


def name_of(layer: str) -> Name:
    """Return the part in a layer's name in a file, and the path after it with underscores for dots."""
    prefix, path = split_layer(layer)
    return prefix.part, path


def fits(shapes: Shapes, weight: Shape) -> bool:
    """Return whether the factors of a layer can be for a weight (out, in, and height and width of a kernel).

    True if the shapes of the factors do not tell.
    """
    size = _size(shapes)
    if size is None or not weight:
        return True
    rows, columns = size
    inner = weight[1:]
    return rows in (0, weight[0]) and columns in (0, prod(inner), inner[0] if inner else 1)


def _size(shapes: Shapes) -> tuple[int, int] | None:
    """Return how many rows and columns the change of a layer has, 0 for unknown ones; None for unknown factors."""
    return next((size for t in adapter_types() if (size := t.size(shapes)) is not None), None)


# How the layers of an adapter file are named, as the programs that load it tell namings apart.

# kohya's prefixes of the first text encoder in the files of another family's models.
_OTHER_PREFIXES: Mapping[str, Naming] = {
    "lora_te1_": "kohya, lora_te1_ for lora_te_",
    "lora_te_": "kohya, lora_te_ for lora_te1_",
}
_PEFT: tuple[Naming, ...] = ("PEFT, denoiser", "PEFT, text", "PEFT, text without text_model")
_MAGNITUDES = (".lora_magnitude_vector", ".lora_magnitude_vector.weight")
_PEFT_ENDS = (".lora_A.weight", ".lora_B.weight", *_MAGNITUDES, f".{ALPHA}")
_LINEAR_LAYER = (".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight")
_OLD_ENDS = (
    *("_lora.down.weight", "_lora.up.weight", ".lora.down.weight", ".lora.up.weight"),
    *(".lora_A.default.weight", ".lora_B.default.weight"),
    *_LINEAR_LAYER,
)


def layout_of(layer: str, target: AdapterTarget) -> Layout | None:
    """Return the layout of the target's path in the name of a layer in a file; None for a mixed spelling."""
    prefix, _ = split_layer(layer)
    return next((layout for layout, path in target.paths.items() if prefix.name_of(path) == layer), None)


def naming_of(layer: str, target: AdapterTarget, tensors: Collection[str]) -> Naming:
    """Return the naming of a layer by its name in a file, the target of that name, and the names of its tensors."""
    layout = layout_of(layer, target)
    if layout is None:
        return "other"
    prefix, _ = split_layer(layer)
    naming = prefix.namings.get(layout, "other")
    if naming.startswith("kohya") and prefix.start != target.prefix:
        return _OTHER_PREFIXES.get(prefix.start, "other") if layout == target.kohya_layout else "other"
    return _with_factors(naming, tensors) if naming in _PEFT else naming


def kohya_naming_of(target: AdapterTarget) -> Naming:
    """Return the naming of a layer in our files of kohya's form."""
    target = target.pieces[0] if target.is_only_read else target
    return split_layer(target.kohya_name)[0].namings.get(target.kohya_layout, "other")


def comfy_naming_of(target: AdapterTarget) -> Naming:
    """Return the naming of a layer in our files of ComfyUI's form (`lora_names.comfy_naming`)."""
    target = target.pieces[0] if target.is_only_read else target
    if target.is_text:
        return "ComfyUI, text"
    return "ComfyUI, original names" if "original" in target.paths else "ComfyUI, diffusers names"


def _with_factors(naming: Naming, tensors: Collection[str]) -> Naming:
    """Return the naming of a dotted layer by how its factors are spelled, since programs also tell these apart."""
    if all(t.endswith(_PEFT_ENDS) for t in tensors):
        return naming
    if naming == "PEFT, denoiser" and all(t.endswith(_OLD_ENDS) for t in tensors):
        return "before PEFT, denoiser"
    if naming == "PEFT, text" and all(t.endswith(_LINEAR_LAYER) for t in tensors):
        return "before PEFT, text"
    return "other factors in PEFT names"
