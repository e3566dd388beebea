"""Running ONNX files with ONNX Runtime, which is an optional package."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from modules.annotators.spec import ONNX
from modules.system.errors import DarkroomError


class Session(Protocol):
    """The part of onnxruntime.InferenceSession that is used here."""

    def get_inputs(self) -> Sequence[Any]:
        """Return the inputs, each with a name and a shape."""
        ...

    def run(self, outputs: None, feeds: Mapping[str, NDArray[np.float32]]) -> Sequence[Any]:
        """Return all outputs."""
        ...


def open_session(file: Path, device: str) -> Session:
    """Return a session of an ONNX file, on a GPU if `device` is one and the package supports it.

    Raises DarkroomError where the package is missing, or the file cannot be loaded.
    """
    try:
        runtime = importlib.import_module(ONNX.name)
    except ImportError as error:
        raise DarkroomError(
            f"{file.name} needs the package {ONNX.name}, which cannot be loaded ({error}).",
            advice=f"{ONNX.install}, or choose another model.",
        ) from error
    wanted = ["CPUExecutionProvider"]
    if not device.startswith("cpu") and "CUDAExecutionProvider" in runtime.get_available_providers():
        wanted.insert(0, "CUDAExecutionProvider")
    try:
        session: Session = runtime.InferenceSession(str(file), providers=wanted)
    except Exception as error:
        raise DarkroomError(
            f"The model file {file} cannot be loaded: {str(error).splitlines()[0]}",
            advice="Delete it, so that it is downloaded again.",
        ) from error
    return session
