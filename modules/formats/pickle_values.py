"""The values that the instructions of a pickle build, as far as they matter for a state dict: tensors and dictionaries.

Nothing is created but descriptions: a tensor is its dtype, shape and place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# The functions and classes that a pickled checkpoint may name. One that names any other is not safe to load.
#
# The detection (`checkpoint_header.py`) and the loading by torch (`stored_tensors.py`) both use these lists.
_STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_DTYPE_NAMES = (
    *(
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
    ),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
)

TENSOR_NAMES = frozenset(
    {
        "collections.OrderedDict",
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_parameter_with_state",
        "torch.nn.parameter.Parameter",
        "torch.Size",
        "torch.Tensor",
        "torch.device",
        "torch.storage.TypedStorage",
        "torch.storage.UntypedStorage",
        "_codecs.encode",  # bytes, in protocol 2
        *(f"{module}.{name}" for module in ("builtins", "__builtin__") for name in ("set", "bytearray", "complex")),
        *(f"torch.{name}Storage" for name in _STORAGES),
        *(f"torch.{name}" for name in _DTYPE_NAMES),
    }
)
"""The names that tensors, containers and plain values need; torch.load with `weights_only` allows all of them."""

LEFTOVERS = (
    "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint",
    "lightning.pytorch.callbacks.model_checkpoint.ModelCheckpoint",
    "pytorch_lightning.utilities.enums.DeviceType",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "numpy.dtype",
)
"""Classes that published SD 1 checkpoints name besides tensors, leftovers of their trainer. Loading replaces them by
empty objects."""


PARAMETER_DICT = "torch.nn.modules.container.ParameterDict"
"""The class of the vectors in the oldest embeddings; A1111 allows it, too. Loading takes only its parameters."""


def is_safe_name(name: str) -> bool:
    """Return whether loading a pickle that names this function or class runs no code of the file's choice."""
    return name in TENSOR_NAMES or name in LEFTOVERS or name == PARAMETER_DICT


_MAX_AXES = 64  # torch's own limit
_INT64 = 2**63
OPAQUE = object()
"""Any value that cannot be part of a state dict."""

_DTYPES = {
    **{"Float": "F32", "Half": "F16", "BFloat16": "BF16", "Double": "F64"},
    **{"Long": "I64", "Int": "I32", "Short": "I16", "Char": "I8", "Byte": "U8", "Bool": "BOOL"},
    **{"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
    **{"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "bool": "BOOL"},
    **{"uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8"},
}


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A tensor as described in a pickle; `place` is its storage's name and the index of its first element there."""

    dtype: str
    shape: tuple[int, ...]
    place: tuple[str, int] = ("", 0)


@dataclass(frozen=True, slots=True)
class NamedGlobal:
    """A function or class that a pickle names."""

    name: str


@dataclass(eq=False, slots=True)
class BuiltObject:
    """An object of any class: the name of the class, and the state that the pickle gives it."""

    name: str
    state: Any = None


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of a tensor: the name of its class, which contains the dtype, and its own name in the file."""

    dtype: str
    key: str


def result_of(function: Any, arguments: Any) -> Any:
    """Return the result of a call as far as it matters here: tensors, parameters and dictionaries.

    Raises ValueError, IndexError or TypeError for arguments that torch does not write.
    """
    name = function.name if isinstance(function, NamedGlobal) else ""
    if name == "collections.OrderedDict":
        return _ordered_dict(*arguments)
    if name == PARAMETER_DICT:
        return Parameters()
    if name.startswith("torch._utils._rebuild_tensor"):
        return _tensor(*arguments)
    if name.startswith("torch._utils._rebuild_parameter") or name == "torch.Size":
        return arguments[0]
    return OPAQUE


class Parameters(dict[str, Any]):
    """A module's parameters by name, which it gets as part of its state."""


def set_state(target: Any, state: Any) -> None:
    """Give an object its state; only a dictionary of parameters holds tensors of a state dict."""
    if isinstance(target, BuiltObject):
        target.state = state
    parameters = state.get("_parameters") if isinstance(target, Parameters) and isinstance(state, dict) else None
    if isinstance(parameters, dict):
        target.update(parameters)


def _ordered_dict(pairs: Any = ()) -> dict[str, Any]:
    """Return the dictionary of a list of pairs, as Python 2 wrote it."""
    items: dict[str, Any] = {}
    for key, value in pairs if isinstance(pairs, list) else ():
        set_item(items, key, value)
    return items


def _tensor(storage: Any, offset: Any, shape: Any, *rest: Any) -> PickledTensor:
    """Return a tensor from the arguments of torch's functions; version 3 has the dtype at index 6."""
    if not isinstance(storage, Storage) or not isinstance(shape, tuple) or len(shape) > _MAX_AXES:
        raise ValueError("not a tensor")
    dtype = rest[3].name if len(rest) > 3 and isinstance(rest[3], NamedGlobal) else storage.dtype
    if any(type(n) is not int or not 0 <= n < _INT64 for n in (offset, *shape)):
        raise ValueError("not the shape of a tensor")
    kind = dtype.rpartition(".")[2].removesuffix("Storage")
    return PickledTensor(_DTYPES.get(kind, kind), shape, (storage.key, offset))


def set_item(target: Any, key: Any, value: Any) -> None:
    """Set an item of a dictionary by the text of its key, or by an object; nothing for another target or key."""
    # Numbers of any length can be keys; the text of one of a megabyte takes minutes.
    if isinstance(target, dict) and (isinstance(key, str) or (isinstance(key, int) and -_INT64 <= key < _INT64)):
        target[str(key)] = value
    elif isinstance(target, dict) and isinstance(key, BuiltObject):
        target[key] = value


def storage_of(place: Any) -> Storage:
    """Return the storage that a tuple names: "storage", its class, its name, its device and its length.

    Raises ValueError for anything else.
    """
    if not isinstance(place, tuple) or len(place) < 4 or place[0] != "storage":
        raise ValueError("not a storage")
    kind, key = place[1], place[2]
    if not isinstance(kind, NamedGlobal) or not isinstance(key, str | int):
        raise ValueError("not a storage")
    return Storage(kind.name, str(key))
