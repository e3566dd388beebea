"""Reward servers on this computer: one in a thread that answers as told, and the example of the docs as a process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from modules.system.paths import PROGRAM_ROOT

EXAMPLE = PROGRAM_ROOT / "docs" / "reward_server.py"


@dataclass(frozen=True)
class Reply:
    """An answer: bytes are sent as they are, anything else as JSON; a function is called with the message.

    One with `hangs` only comes when the test ends, the end of one with `stalls` too; one with `cuts` lacks its end.
    """

    content: Any = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    hangs: bool = False
    cuts: bool = False
    stalls: bool = False


@dataclass
class TestServer:
    """What a server has received, and what it answers: each of `replies` once, the last one from then on."""

    __test__ = False

    replies: list[Reply]
    received: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @property
    def address(self) -> str:
        """Its address in a config."""
        return f"http://127.0.0.1:{self.port}/score"

    def next_reply(self) -> Reply:
        """Return the next answer."""
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@contextmanager
def serving(*replies: Reply) -> Iterator[TestServer]:
    """Yield a server that runs in a thread."""
    told = TestServer(list(replies))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            told.headers.append({"path": self.path, **self.headers})
            reply = told.next_reply()
            content = reply.content(told.received[-1]) if callable(reply.content) else reply.content
            if reply.hangs:
                told.over.wait()
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(reply.status)
            for name, value in {
                "Content-Length": str(len(data) + 9 * (reply.cuts or reply.stalls)),
                **reply.headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):  # whoever asked has given up
                self.wfile.write(data)
            if reply.stalls:
                told.over.wait()

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        told.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield told
        finally:
            told.over.set()
            server.shutdown()
            thread.join()


class ExampleServer:
    """The example of the docs as a process of its own, which can be killed and started again at the same port."""

    def __init__(self) -> None:
        self.address = ""
        self.num_starts = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        port = self.address.rpartition(":")[2].partition("/")[0] or "0"
        arguments = [sys.executable, str(EXAMPLE), "--port", port]
        self._process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().rpartition(" ")[2].strip()
        self.num_starts += 1

    def kill(self) -> None:
        """Kill it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
