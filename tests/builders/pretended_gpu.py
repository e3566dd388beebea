"""A pretended GPU: real values in the computer's memory, on tensors whose device is "cuda:0". No CUDA is needed.

The dispatch keys of such a tensor are CUDA's, so autograd, autocast, the optimizers and the program take their way for
a GPU. Below them each operation is done by the CPU, after what a GPU would refuse has been refused: operands of two
devices, generators of another device, reading memory of the GPU as an array, and what only kernels of the CPU take
(norms of one dtype with weights of another, fused optimizers whose tensors lie in memory in different orders, products
in 8 bits of sizes that tensor cores do not have, and in deterministic mode what has no deterministic kernel). Streams
and events exist, but all work is done at once, so what is read before its copy is done is not found.

Only for torch's build for CPUs on Linux: autograd asks C++ objects for the GPU's streams, and here gets them by changed
tables of virtual functions.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.host_waits import READS, place_of_wait
from benchmarks.kernels.pretended_accelerator import pretended_accelerator
from modules.memory import transfers
from modules.memory.guard import tensors_in

_ATEN = torch.ops.aten
_C: Any = torch._C
CAN_PRETEND = sys.platform == "linux" and torch.version.cuda is None and torch.version.hip is None
_CPU, _CUDA = torch.device("cpu"), torch.device("cuda:0")
_TOTAL_BYTES = 24 << 30
# Operations that accept an index on the CPU beside values on a GPU.
_OF_INDICES = (torch.int64, torch.int32, torch.bool, torch.uint8)
_INDEXING = frozenset(
    {_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default, _ATEN._index_put_impl_.default}
)
# Operations that take no number of the CPU among tensors on a GPU, although it has no dimensions.
_WITHOUT_NUMBERS = frozenset(
    {_ATEN.stack.default, _ATEN.index_select.default, _ATEN.gather.default, _ATEN.embedding.default}
)
_ON_LISTS = ("aten::_foreach_", "aten::_fused_")
# What raises an error on a GPU in deterministic mode, as `torch.use_deterministic_algorithms` lists it.
_NOT_DETERMINISTIC = frozenset(
    f"aten::{name}"
    for name in (
        "avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward",
        "adaptive_max_pool2d_backward", "max_unpool2d", "max_unpool3d", "upsample_linear1d_backward",
        "upsample_bilinear2d_backward", "_upsample_bilinear2d_aa_backward", "upsample_bicubic2d_backward",
        "_upsample_bicubic2d_aa_backward", "upsample_trilinear3d_backward", "reflection_pad1d_backward",
        "reflection_pad2d_backward", "reflection_pad3d_backward", "nll_loss2d_forward", "_ctc_loss_backward", "put_",
        "histc", "grid_sampler_2d_backward", "grid_sampler_3d_backward", "kthvalue",
    )
)  # fmt: skip
_NOT_OF_FLOATS = frozenset({"aten::cumsum", "aten::cumsum_"})
_TYPES = {torch.float32: "Float", torch.bfloat16: "BFloat16", torch.float16: "Half"}
# What changes the shape of a tensor in place, and no memory.
_CHANGES_VIEW = frozenset(
    {_ATEN.unsqueeze_.default, _ATEN.squeeze_.dim, _ATEN.squeeze_.default, _ATEN.transpose_.default, _ATEN.t_.default}
)
_CHANGES_SHAPE = frozenset({_ATEN.resize_.default, _ATEN.set_.source_Storage_storage_offset})
_MADE_HERE = frozenset({_ATEN._pin_memory.default, _ATEN.mm.dtype})  # which the CPU alone does not do
_NORMS = {  # the places of their input and their weight
    _ATEN.native_layer_norm.default: (0, 2),
    _ATEN.native_group_norm.default: (0, 1),
    _ATEN.native_layer_norm_backward.default: (1, 5),
    _ATEN.native_group_norm_backward.default: (1, 4),
}
_GENERATOR = torch.Generator


class MixedDevicesError(RuntimeError):
    """An operation that a real GPU would refuse."""


class NoKernelError(RuntimeError):
    """An operation that the CPU has a kernel for, and a GPU has not."""


class PretendedTensor(torch.Tensor):
    """A tensor whose device follows from its dispatch keys."""

    __torch_function__ = _C._disabled_torch_function_impl

    def __new__(cls, data: torch.Tensor, requires_grad: bool = True, **_: Any) -> Any:
        """Return a parameter: libraries make a new one by the class of the former."""
        return torch.nn.Parameter(data, requires_grad)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})

    def numpy(self, *, force: bool = False) -> Any:
        """Return its memory as an array, as torch does for a tensor on the CPU only."""
        if _is_cuda(self) and not force:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        return _plain(self).numpy()

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """Return the name of its type, or the tensor in another one, which torch itself would ask its CUDA for."""
        names = {made: f"torch.cuda.{name}Tensor" for made, name in _TYPES.items()}
        if dtype is None:
            return names[self.dtype]
        return self.to(next((made for made, name in names.items() if name == dtype), dtype))

    def tolist(self) -> Any:
        return _read(self).tolist()

    def __repr__(self, **_: Any) -> str:
        return f"{_plain(self.detach())} on {self.device}"

    def __format__(self, spec: str) -> str:
        return format(_read(self), spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        copy = self.detach().clone().requires_grad_(self.requires_grad)
        copy.__dict__.update(self.__dict__)
        memo[id(self)] = copy
        return copy


class PretendedGenerator(_GENERATOR):
    """A generator of the CPU, or of the pretended GPU."""

    def __new__(cls, device: Any = "cpu") -> PretendedGenerator:
        made = super().__new__(cls)
        _state.generators[made._cdata] = _CPU if torch.device(device).type == "cpu" else _CUDA
        return made

    @property
    def device(self) -> torch.device:
        return _state.generators[self._cdata]


class Counts:
    """What happened on the GPU."""

    def __init__(self) -> None:
        self.num_operations = 0
        self.waits: Counter[str] = Counter()  # of the host for the GPU, by the line of the program

    @property
    def num_waits(self) -> int:
        """How often the host waited for the GPU."""
        return self.waits.total()

    def add_wait(self) -> None:
        """Count a wait for what is running now."""
        self.waits[place_of_wait()] += 1


class _State:
    """The pretended GPU's own state."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.random = _GENERATOR()
        self.generators: dict[int, torch.device] = {}  # by the address of their C++ object, which operations get
        self.pinned: dict[int, StorageWeakRef] = {}


_state = _State()


def _is_cuda(tensor: torch.Tensor) -> bool:
    return bool(_C._dispatch_keys(tensor).has(_C.DispatchKey.CUDA))


def _is_there(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, PretendedTensor) or _is_cuda(tensor)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return an ordinary CPU tensor of the same memory."""
    if not _is_there(tensor):
        return tensor
    with _C._DisableTorchDispatch():
        storage = tensor.untyped_storage()
        same = torch.empty(0, dtype=tensor.dtype)
        return same.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _pretended(tensor: torch.Tensor) -> torch.Tensor:
    return torch.Tensor._make_subclass(
        PretendedTensor, tensor, False, dispatch_device=True, device_for_backend_keys=_CUDA
    )


def _read(tensor: torch.Tensor) -> torch.Tensor:
    if _is_cuda(tensor):
        _state.counts.add_wait()
    return _plain(tensor)


def _is_pinned(tensor: torch.Tensor) -> bool:
    with _C._DisableTorchDispatch():
        found = _state.pinned.get(tensor.untyped_storage()._cdata)
    return found is not None and not found.expired()


def _pin(tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    _state.pinned[storage._cdata] = StorageWeakRef(storage)


def _dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func is torch.ops.prim.device.default:
        return _CUDA if _is_cuda(args[0]) else _CPU
    if func is _ATEN.is_pinned.default:
        return _is_pinned(args[0])
    with _C._DisableTorchDispatch():  # `_disable_current_modes` takes as long as the operation
        return _run(func, args, dict(kwargs))


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = [*tensors_in((*args, *kwargs.values()))]
    asked = kwargs.get("device")
    device = _device_of(func, args, given, asked)
    if _reads(func, args, given):
        _state.counts.add_wait()
    pins = kwargs.pop("pin_memory", None)
    if asked is not None:
        kwargs["device"] = _CPU if torch.device(asked).type != "meta" else asked
    if device == _CPU and pins is None and func not in _MADE_HERE and not any(map(_is_there, given)):
        _check_generator(func, args, kwargs, device)
        return func(*args, **kwargs)
    owners: dict[int, torch.Tensor] = {}

    def unwrap(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            plain = _plain(value)
            owners[id(plain)] = value
            held.append(plain)
            return plain
        if isinstance(value, list | tuple):
            return type(value)(unwrap(v) for v in value)
        return value

    def wrap(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            own = owners.get(id(value))
            if own is not None or device != _CUDA:
                return value if own is None else own
            return _pretended(value)
        if isinstance(value, list | tuple):
            return type(value)(wrap(v) for v in value)
        return value

    if device == _CUDA:
        _require_kernel(func, args, kwargs)
    held: list[torch.Tensor] = []
    plain_args, plain_kwargs = unwrap(args), {k: unwrap(v) for k, v in kwargs.items()}
    if func is _ATEN._pin_memory.default:
        result: Any = plain_args[0].clone()
        pins = True
    elif func is _ATEN._to_copy.default and asked is not None:
        if _waits(given[0], torch.device(asked), bool(kwargs.get("non_blocking"))):
            _state.counts.add_wait()
        result = func(*plain_args, **plain_kwargs)
    elif func is _ATEN._int_mm.default:  # exact on each GPU, and not on each CPU
        result = torch.mm(*(t.double() for t in plain_args)).int()
    else:
        if func is _ATEN.mm.dtype:  # only GPUs return another dtype than that of the operands
            func, plain_args = _ATEN.mm.default, tuple(t.to(plain_args[2]) for t in plain_args[:2])
        _check_generator(func, args, kwargs, device)
        result = _drawn(func, plain_args, plain_kwargs, device)
    if device == _CUDA:
        _state.counts.num_operations += 1
    if func in _CHANGES_VIEW and device == _CUDA:
        with _C._DisableTorchDispatch():
            func(*args)
    if func in _CHANGES_SHAPE and device == _CUDA:
        raise NotImplementedError(f"{func} on a pretended GPU")
    wrapped = wrap(result)
    if pins:
        _pin(wrapped)
    return wrapped


def _waits(tensor: torch.Tensor, target: torch.device, non_blocking: bool) -> bool:
    """Whether the host waits for a copy between it and the GPU: for all to the host, and for those that may block."""
    if _is_cuda(tensor):
        return target.type == "cpu"
    return target.type == "cuda" and not (non_blocking and _is_pinned(tensor))


def _reads(func: Any, args: tuple[Any, ...], given: list[torch.Tensor]) -> bool:
    """Whether the host waits for values of tensors on the GPU: to have them, or for a size that follows from them."""
    if func.overloadpacket in READS:
        return any(map(_is_cuda, given))
    if func in _INDEXING and _is_cuda(given[0]):
        indices = [*tensors_in(args[1])]
        return any(i.dtype in (torch.bool, torch.uint8) or not _is_cuda(i) for i in indices)
    if func is not _ATEN.copy_.default:
        return False
    target, source, *non_blocking = args
    if any(non_blocking) and _is_cuda(source) and not _is_cuda(target):
        return not _is_pinned(target)
    return _waits(source, target.device, any(non_blocking))


def _device_of(func: Any, args: tuple[Any, ...], given: list[torch.Tensor], asked: Any) -> torch.device:
    """Return the device of an operation's results. Raises MixedDevicesError for operands that a GPU would refuse."""
    if asked is not None:
        found = torch.device(asked)
        return _CUDA if found.type == "cuda" else found
    if func in (_ATEN.copy_.default,):
        return _CUDA if _is_cuda(given[0]) else _CPU
    if any(t.is_meta for t in given):
        return torch.device("meta")
    on_gpu = [t for t in given if _is_cuda(t)]
    if not on_gpu:
        return _CPU
    for together in _by_item(func, args) if func._schema.name.startswith(_ON_LISTS) else [given]:
        _require_one_device(func, together)
    return _CUDA


def _by_item(func: Any, args: tuple[Any, ...]) -> Iterator[list[torch.Tensor]]:
    """Yield the tensors that an operation on lists takes together; copies may cross devices."""
    if not func._schema.name.startswith("aten::_foreach_copy"):
        lists = [a for a in args if isinstance(a, list | tuple)]
        yield from ([*tensors_in(one)] for one in itertools.zip_longest(*lists))


def _require_one_device(func: Any, tensors: list[torch.Tensor]) -> None:
    """Raise MixedDevicesError for operands that a GPU would refuse: it takes numbers of the CPU, and indices."""
    if not any(map(_is_cuda, tensors)):
        return
    takes_numbers = func not in _WITHOUT_NUMBERS and not func._schema.name.startswith("aten::_fused_")
    checked = tensors
    if func in _INDEXING and _is_cuda(tensors[0]):
        checked = [t for t in tensors if t.dtype not in _OF_INDICES]
    if any(not _is_cuda(t) and not (takes_numbers and not t.dim()) for t in checked):
        shapes = ", ".join(f"{'cuda' if _is_cuda(t) else 'cpu'} {tuple(t.shape)}" for t in tensors)
        raise MixedDevicesError(f"{func}: expected all tensors to be on the same device: {shapes}")


def _require_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise NoKernelError for what torch's kernels for CUDA refuse, and those for the CPU take."""
    if torch.are_deterministic_algorithms_enabled():
        name, is_float = func._schema.name, any(t.dtype.is_floating_point for t in tensors_in(args))
        if name in _NOT_DETERMINISTIC or (name in _NOT_OF_FLOATS and is_float):
            raise NoKernelError(f"{name} does not have a deterministic implementation")
    if func in _NORMS:
        x, weight = (args[place] for place in _NORMS[func])
        if weight is not None and weight.dtype != x.dtype:
            raise NoKernelError(f"{func} of {x.dtype} with a weight in {weight.dtype}")
    elif func._schema.name.startswith("aten::_fused_"):
        lists = [a for a in args if isinstance(a, list | tuple) and a and a[0].dim() + a[0].numel() > 1]
        for tensors in zip(*lists, strict=False):
            if len({(t.dtype, _order(t)) for t in tensors}) > 1:
                raise NoKernelError(f"{func}: {[(t.dtype, t.size(), t.stride()) for t in tensors]}")
    elif func is _ATEN._int_mm.default:
        (num_rows, length), num_columns = args[0].shape, args[1].shape[1]
        if num_rows <= 16 or length % 8 or num_columns % 8:
            raise NoKernelError(f"{func} of {num_rows}, {length} and {num_columns}")
    elif func is _ATEN._scaled_mm.default:
        _require_scaled_product(*args[:4], out_dtype=kwargs.get("out_dtype"))


def _order(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True) if size != 1)


def _require_scaled_product(
    left: torch.Tensor, right: torch.Tensor, left_scales: torch.Tensor, right_scales: torch.Tensor, *, out_dtype: Any
) -> None:
    """Raise NoKernelError for what torch refuses as operands of a product in float8."""
    length, num_columns = right.shape
    is_laid_out = left.stride() == (length, 1) and right.stride() == (1, length)
    if not is_laid_out or length % 16 or num_columns % 16:
        raise NoKernelError(
            f"a product in float8 of {left.size()}, {left.stride()} and {right.size()}, {right.stride()}"
        )
    of_rows = left_scales.shape == (len(left), 1) and right_scales.shape == (1, num_columns)
    is_one = left_scales.numel() == right_scales.numel() == 1
    if not is_one and not (of_rows and left_scales.is_contiguous() and right_scales.is_contiguous()):
        raise NoKernelError(f"scales of {left_scales.size()} and {right_scales.size()}")
    if not is_one and (out_dtype != torch.bfloat16 or len(left) <= 256):
        raise NoKernelError(f"a product of {len(left)} tokens with scales of rows in {out_dtype}")


def _check_generator(func: Any, args: Any, kwargs: dict[str, Any], device: torch.device) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, _GENERATOR):
            own = _state.generators.get(value._cdata, _CPU)
            if own.type != device.type:
                raise MixedDevicesError(f"{func}: expected a {device} generator, got one of {own}")


def _drawn(func: Any, args: Any, kwargs: dict[str, Any], device: torch.device) -> Any:
    """Run an operation; one that draws random numbers on the GPU without a generator has the GPU's own."""
    draws = torch.Tag.nondeterministic_seeded in func.tags and device == _CUDA
    if not draws or any(isinstance(v, _GENERATOR) for v in (*args, *kwargs.values())):
        return func(*args, **kwargs)
    former = torch.default_generator.get_state()
    torch.default_generator.set_state(_state.random.get_state())
    try:
        return func(*args, **kwargs)
    finally:
        _state.random.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(former)


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


class PretendedStream:
    """A stream whose work is done at once."""

    def __init__(self, device: Any = None, **_: Any) -> None:
        self.device = _CUDA

    def wait_stream(self, other: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> PretendedEvent:
        return event or PretendedEvent()

    def synchronize(self) -> None:
        _state.counts.add_wait()

    def query(self) -> bool:
        return True


class PretendedEvent:
    """An event that has happened."""

    def __init__(self, **_: Any) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    cuda: Any = torch.cuda
    facts = SimpleNamespace(name="Pretended GPU", total_memory=_TOTAL_BYTES, major=8, minor=6, multi_processor_count=80)
    stream = PretendedStream()
    values: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "_initialized": True,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "_exchange_device": lambda index: 0,
        "_maybe_exchange_device": lambda index: 0,
        "set_device": lambda device: None,
        "is_bf16_supported": lambda *_, **__: True,
        "get_device_properties": lambda device=None: facts,
        "get_device_capability": lambda device=None: (8, 6),
        "get_device_name": lambda device=None: facts.name,
        "mem_get_info": lambda device=None: (_TOTAL_BYTES, _TOTAL_BYTES),
        "memory_reserved": lambda device=None: 0,
        "max_memory_reserved": lambda device=None: 0,
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "memory_stats": lambda device=None: {},
        "host_memory_stats_as_nested_dict": lambda: {},
        "empty_cache": lambda: None,
        "synchronize": lambda device=None: stream.synchronize(),
        "Stream": PretendedStream,
        "Event": PretendedEvent,
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda device=None: stream,
        "manual_seed": lambda seed: _state.random.manual_seed(seed),
        "manual_seed_all": lambda seed: _state.random.manual_seed(seed),
        "get_rng_state": lambda device="cuda": _state.random.get_state(),
        "set_rng_state": lambda state, device="cuda": _state.random.set_state(_plain(state)),
    }
    for name, value in values.items():
        yield cuda, name, value
    yield torch, "Generator", PretendedGenerator
    yield torch.Tensor, "cuda", lambda self, device=None, non_blocking=False: self.to(_CUDA, non_blocking=non_blocking)
    yield torch.Tensor, "_use_count", lambda _: 1  # `swap_tensors` refuses weights that autograd still knows
    yield transfers, "_disable_current_modes", contextlib.nullcontext  # this GPU is a mode
    yield threading.Thread, "run", _run_in_mode(threading.Thread.run)


def _run_in_mode(run: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    def wrapped(self: threading.Thread) -> None:
        with _here():
            run(self)

    return wrapped


@contextlib.contextmanager
def _here() -> Iterator[None]:
    """Pretend in this thread."""
    with _Mode(), torch.autograd.set_multithreading_enabled(False):
        yield


@contextlib.contextmanager
def pretended_gpu() -> Iterator[Counts]:
    """Pretend a GPU in this context; threads that are started in it have it too."""
    global _state
    former, _state = _state, _State()
    lifts = _C._only_lift_cpu_tensors()
    with contextlib.ExitStack() as stack:
        for owner, name, value in _replacements():
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(pretended_accelerator())
        # `torch.tensor` reads the tensors in a list below all modes.
        library = stack.enter_context(torch.library._scoped_library("aten", "IMPL"))
        library.impl("_local_scalar_dense", lambda tensor: _read(tensor).item(), "CUDA")
        _C._set_only_lift_cpu_tensors(True)
        stack.callback(_C._set_only_lift_cpu_tensors, lifts)
        # A parameter that is moved becomes one of another class, in place.
        stack.callback(
            torch.__future__.set_swap_module_params_on_conversion,
            torch.__future__.get_swap_module_params_on_conversion(),
        )
        torch.__future__.set_swap_module_params_on_conversion(True)
        types = sys.modules["torch.optim.optimizer"]._foreach_supported_types
        types.append(PretendedTensor)
        stack.callback(types.remove, PretendedTensor)
        stack.enter_context(_here())
        try:
            yield _state.counts
        finally:
            _state = former
