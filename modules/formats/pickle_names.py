"""The functions and classes that a pickled checkpoint may name. One that names any other is not safe to load.

The detection (`checkpoint_header.py`) and the loading by torch (`stored_tensors.py`) both use these lists.
"""

from __future__ import annotations

_STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_DTYPES = (
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
        *(f"torch.{name}" for name in _DTYPES),
    }
)
"""What tensors, containers and plain values need. torch.load with `weights_only` allows all of them by itself."""

LEFTOVERS = (
    "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint",
    "lightning.pytorch.callbacks.model_checkpoint.ModelCheckpoint",
    "pytorch_lightning.utilities.enums.DeviceType",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "numpy.dtype",
)
"""Classes that published SD 1 checkpoints name beside tensors, leftovers of their trainer. Loading replaces them by
empty objects."""


PARAMETER_DICT = "torch.nn.modules.container.ParameterDict"
"""The class of the vectors in the oldest embeddings; A1111 allows it, too. Loading takes only its parameters."""


def is_safe_name(name: str) -> bool:
    """Return whether loading a pickle that names this function or class runs no code of the file's choice."""
    return name in TENSOR_NAMES or name in LEFTOVERS or name == PARAMETER_DICT
