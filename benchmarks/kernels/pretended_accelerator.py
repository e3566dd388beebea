"""Makes CUDA the accelerator of torch's build for CPUs: autograd's C++ code reads a GPU's streams from the accelerator.

Without one the process aborts at the first weight on "cuda:0". The virtual function tables of two of torch's objects
are replaced by changed copies.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

# Symbols of torch's libraries, and positions in the function table of ATen/detail/AcceleratorHooksInterface.h.
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
_GET_HOOKS = "_ZN2at6detail12getCUDAHooksEv"
_IS_BUILT, _HAS_CONTEXT, _NUM_FUNCTIONS = 2, 4, 48
# Positions in the function table of c10/core/impl/DeviceGuardImplInterface.h.
_EXCHANGE_DEVICE, _GET_DEVICE, _SET_DEVICE, _GET_STREAM, _EXCHANGE_STREAM = 1, 2, 3, 5, 9
_RECORD_EVENT, _WAIT_FOR_EVENT, _NUM_GUARD_FUNCTIONS = 12, 13, 24
# A function that returns the device with c10's type 1 (CUDA) and index 0, or its default stream.
_FIRST_GPU_CODE = {
    "x86_64": bytes.fromhex("b80100000031d2c3"),  # mov eax, 1; xor edx, edx; ret
    "aarch64": bytes.fromhex("20008052010080d2c0035fd6"),  # mov w0, 1; mov x1, 0; ret
}


@contextlib.contextmanager
def pretended_accelerator() -> Iterator[None]:
    """Let torch's C++ code take CUDA for the accelerator, with a device guard that does nothing, like the CPU's."""
    folder = Path(torch.__file__).parent / "lib"
    guards = (ctypes.c_void_p * 2).in_dll(ctypes.CDLL(str(folder / "libc10.so")), _GUARDS)
    get_hooks = ctypes.CDLL(str(folder / "libtorch_cpu.so"))[_GET_HOOKS]
    get_hooks.restype = ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))
    hooks = get_hooks()
    of_hooks = _address(hooks[0])  # the number: the pointer itself would change with its place
    changed = (ctypes.c_void_p * _NUM_FUNCTIONS)(*hooks[0][:_NUM_FUNCTIONS])
    changed[_IS_BUILT], changed[_HAS_CONTEXT] = _address(_yes), _address(_yes)
    of_cpu = ctypes.cast(guards[0] or 0, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))[0]
    of_gpu = (ctypes.c_void_p * _NUM_GUARD_FUNCTIONS)(*of_cpu[:_NUM_GUARD_FUNCTIONS])
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(_FIRST_GPU_CODE[platform.machine()])
    first_gpu = ctypes.addressof(ctypes.c_char.from_buffer(code))
    for place in (_EXCHANGE_DEVICE, _GET_DEVICE, _GET_STREAM, _EXCHANGE_STREAM):
        of_gpu[place] = first_gpu
    of_gpu[_RECORD_EVENT] = of_gpu[_WAIT_FOR_EVENT] = of_cpu[_SET_DEVICE]  # which does nothing
    table = ctypes.c_void_p(_address(of_gpu))
    former, guards[1] = guards[1], ctypes.addressof(table)  # 1 is c10's number of CUDA
    hooks[0] = ctypes.cast(changed, ctypes.POINTER(ctypes.c_void_p))
    try:
        yield
    finally:
        hooks[0] = ctypes.cast(of_hooks, ctypes.POINTER(ctypes.c_void_p))
        guards[1] = former


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


_yes = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(lambda _: True)
