"""The process that runs a user's reward function: `python -m modules.rewards.models.user_child`.

It gets messages on its standard input and answers on its standard output; what the function prints goes to the standard
error. It ends as soon as its input is closed, even within the function: it never outlives the run.
"""

from __future__ import annotations

import json
import os
import queue
import random
import struct
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from modules.rewards.models.user_code import UserCode, load_user_reward
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason

_MAX_GRAPHS = 4
_LENGTH = struct.Struct("<Q")
_MAX_SEED = 2**32

Message = tuple[dict[str, Any], list[bytes]]


def send(file: IO[bytes], header: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
    """Write a message: a header of JSON-safe values, and bytes. Raises OSError."""
    text = json.dumps({**header, "sizes": [len(blob) for blob in blobs]}).encode()
    file.write(_LENGTH.pack(len(text)) + text)
    for blob in blobs:
        file.write(blob)
    file.flush()


def receive(file: IO[bytes]) -> Message:
    """Read a message. Raises EOFError at the end of the file."""
    (length,) = _LENGTH.unpack(_read(file, _LENGTH.size))
    header = json.loads(_read(file, length))
    return header, [_read(file, size) for size in header["sizes"]]


def _read(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


def as_bytes(tensor: torch.Tensor) -> bytes:
    """Return the values of a tensor as bytes of float32."""
    return tensor.detach().float().numpy(force=True).tobytes()


def as_tensor(data: bytes, shape: Sequence[int]) -> torch.Tensor:
    """Return the tensor of `as_bytes`, with a shape."""
    return torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(tuple(shape))


class Server:
    """Answers the messages: loads the function, scores images, and returns gradients of scores."""

    def __init__(self) -> None:
        self._reward: UserCode | None = None
        self._device = torch.device("cpu")
        self._graphs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def answer(self, header: dict[str, Any], blobs: Sequence[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """Return the answer to a message. Raises what the user's code raises."""
        if header["do"] == "load":
            torch.set_num_threads(header["num_threads"])
            self._reward = load_user_reward(blobs[0], Path(header["path"]), header["function"])
            if self._reward.is_differentiable:
                self._device = torch.device(header["device"])
            return {"is_differentiable": self._reward.is_differentiable}, []
        if header["do"] == "score":
            return {}, [as_bytes(self._score(header, blobs[0]))]
        if header["key"] not in self._graphs:
            raise DarkroomError(
                "The gradient of a reward function's scores was requested twice, or too late.",
                advice="This is a bug of the training method: report it.",
            )
        images, scores = self._graphs.pop(header["key"])
        given = as_tensor(blobs[0], scores.shape).to(scores)
        (gradient,) = torch.autograd.grad(scores, images, given, allow_unused=True)
        return {}, [as_bytes(torch.zeros_like(images) if gradient is None else gradient)]

    def _score(self, header: dict[str, Any], data: bytes) -> torch.Tensor:
        assert self._reward is not None
        random.seed(header["seed"])
        np.random.seed(header["seed"] % _MAX_SEED)
        torch.manual_seed(header["seed"])
        images = as_tensor(data, header["shape"]).to(self._device)
        if header["key"] is None:
            with torch.no_grad():
                return self._reward(images, header["prompts"])
        images.requires_grad_()
        scores = self._reward(images, header["prompts"])
        if scores.requires_grad:
            self._graphs[header["key"]] = (images, scores)
            for key in list(self._graphs)[:-_MAX_GRAPHS]:  # of losses that were dropped
                del self._graphs[key]
        return scores


def main() -> None:
    """Answer messages until the input is closed."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    arrived: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def read() -> None:
        try:
            while True:
                arrived.put(receive(requests))
        except (EOFError, OSError):
            os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    server = Server()
    while True:
        header, blobs = arrived.get()
        try:
            send(answers, *server.answer(header, blobs))
        except torch.OutOfMemoryError as error:
            send(answers, {"out_of_memory": str(error)})
        except DarkroomError as error:
            send(answers, {"error": error.message, "advice": error.advice})
        except Exception as error:  # noqa: BLE001 - whatever its gradient raises
            what = f"The gradient of the reward function could not be computed: {plain_reason(error)}."
            send(answers, {"error": what, "advice": "Fix the function."})


if __name__ == "__main__":
    main()
