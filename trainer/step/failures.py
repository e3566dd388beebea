"""Explaining errors to the user: a plain sentence and an advice."""

from __future__ import annotations

import errno

import torch

from modules.system.errors import DarkroomError
from modules.system.file_errors import NO_THREAD, describe_file_error, plain_reason
from trainer.step.precision import CUBLAS_WORKSPACE
from trainer.wording import MIXED_16_BIT

_NOT_DETERMINISTIC = " does not have a deterministic implementation"
_OTHER_BUILD = "no kernel image is available"
_OTHER_16_BIT = "in at::autocast::prioritize"  # the operations that join tensors of the other 16-bit dtype
# Where it is not torch's allocator that runs out of memory, the error is a plain one: of the CPU, of the driver (also
# when it locks memory of the computer), of NVIDIA's libraries, and of Apple's GPUs.
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "could not create a primitive",  # oneDNN's words, which are for other reasons, too
    "could not create a memory",
    "std::bad_alloc",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",  # of segments that grow
    "HIP error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",  # as cuDNN 9 names it
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "MPS backend out of memory",
)


class BranchError(DarkroomError):
    """A branch of a run failed in the dry run before the first step. `__cause__` is the error in it."""


class NotEnoughMemoryError(DarkroomError):
    """A run has run out of memory; the advice names settings. `__cause__` is the error of the allocator."""


def is_fixable(error: BaseException) -> bool:
    """Whether the user can fix an error from its message alone; the others need technical details."""
    if isinstance(error, BranchError | NotEnoughMemoryError):
        return isinstance(error.__cause__, DarkroomError)
    return isinstance(error, DarkroomError)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error means that memory ran out."""
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY):
        return True
    return isinstance(error, torch.OutOfMemoryError | MemoryError)


def explain(error: BaseException) -> tuple[str, str]:
    """Return a sentence and an advice for an error that ended a run."""
    match error:
        case DarkroomError():
            return error.message, error.advice
        case _ if is_out_of_memory(error):
            return (
                "There was not enough memory for this run.",
                "Use a smaller batch or resolution, switch on gradient checkpointing, or close other programs.",
            )
        case RuntimeError() if CUBLAS_WORKSPACE in str(error):
            return (
                "Deterministic mode was switched on after the program had already used the GPU without it.",
                "Restart the program and start this run first.",
            )
        case RuntimeError() if _NOT_DETERMINISTIC in str(error):
            operation = str(error).partition(_NOT_DETERMINISTIC)[0].split()[-1]
            return (
                f"Deterministic mode is on, but torch's {operation} has no deterministic implementation on this "
                "device.",
                "Switch off deterministic mode, or the feature that uses this operation; the details file shows where.",
            )
        case RuntimeError() if _OTHER_BUILD in str(error):
            return (
                "The installed torch was not built for this GPU.",
                "Install the build for it (the launcher chooses it in a new environment), or train on another device.",
            )
        case RuntimeError() if _OTHER_16_BIT in str(error):
            return MIXED_16_BIT
        case OSError() if error.errno == errno.ENOSPC:
            return describe_file_error(error)[0], "Free some space."
        case OSError():
            return describe_file_error(error)
        case RuntimeError() if NO_THREAD in str(error):
            return (
                "The system could not start another thread: memory or the limit of processes is used up.",
                "Close other programs, or lower CPU threads and loader threads.",
            )
        case _:
            return (
                f"An unexpected error occurred: {plain_reason(error)}.",
                "This is a bug in the program. Please report it with the details file.",
            )
