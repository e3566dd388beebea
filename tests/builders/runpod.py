"""A server that answers as RunPod's REST API does, for tests of rented machines."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "rpa_0123456789abcdef"
ADDRESS = {"ports": [{"private": 8888, "type": "http", "ip": "", "public": 0},
                     {"private": 22, "public": 10341, "type": "tcp", "ip": "203.0.113.9"}]}  # fmt: skip

CARDS = [
    {"id": "NVIDIA H100 80GB HBM3", "name": "H100 SXM", "manufacturer": "NVIDIA", "memory": 80, "secure": True,
     "price": {"secure": 2.99, "community": 0}, "maxCount": {"secure": 8}, "availability": "LOW"},
    {"id": "NVIDIA GeForce RTX 4090", "name": "RTX 4090", "manufacturer": "NVIDIA", "memory": 24, "secure": True,
     "price": {"secure": 0.69, "community": 0.34}, "maxCount": {"secure": 8}, "availability": "HIGH"},
    {"id": "NVIDIA L4", "name": "L4\nodd", "memory": 24, "secure": True, "price": {"secure": 0.43},
     "availability": "NONE"},
    {"id": "NVIDIA GeForce RTX 3070", "name": "RTX 3070", "memory": 8, "secure": False, "price": {"secure": 0.1}},
    {"id": "AMD Instinct MI300X OAM", "name": "MI300X", "manufacturer": "AMD", "memory": 192, "secure": True,
     "price": {"secure": 2.5}},
    {"id": "free", "secure": True, "price": {"secure": 0}}, {"odd": 1}, None,
]  # fmt: skip


class FakeRunPod(ThreadingHTTPServer):
    """Pods by id, each with the answers that are still to come for it; the last one stays."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str, Any]] = []
        self.status = 0
        self.body: bytes | None = None
        self.pods: dict[str, list[dict[str, Any]]] = {}
        self.names: dict[str, str] = {}
        self.loses_answer = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v2"

    def answer(self, method: str, path: str, content: Any) -> tuple[int, Any]:
        self.asked.append((method, path, content))
        if self.status:
            return self.status, {"title": "Bad", "status": self.status, "detail": "no card of this kind is free"}
        if self.body is not None:
            return 200, None
        if path.startswith("/v2/catalog/gpus?"):
            return 200, {"gpus": CARDS}
        if path.startswith("/v2/pods?"):
            return 200, {"pods": [{"id": pod, "name": name, "cost": 0.69} for pod, name in self.names.items()]}
        pod = path.split("/")[3] if path.count("/") > 2 else "pod1"
        if method == "POST" and path == "/v2/pods":
            states: list[dict[str, Any]] = [
                {"status": "PROVISIONING", "runtime": None},
                {"status": "STARTING", "runtime": {"ports": None}},
            ]
            self.pods[pod] = [*states, {"status": "RUNNING", "runtime": ADDRESS}]
            self.names[pod] = content["name"]
            if self.loses_answer:
                return 504, {"title": "Gateway timeout"}
            return 201, {"id": pod, "status": "PROVISIONING", "cost": 0.69}
        if pod not in self.pods:
            return 404, {"title": "pod not found"}
        if method == "DELETE":
            del self.pods[pod], self.names[pod]
            return 204, None
        if path.endswith("/action"):
            self.pods[pod] = [{"status": "EXITED", "runtime": None}]
            if content == {"action": "start"}:
                self.pods[pod].append({"status": "RUNNING", "runtime": ADDRESS})
            return 200, {"id": pod}
        left = self.pods[pod]
        return 200, {"id": pod, "cost": 0.69, **(left.pop(0) if len(left) > 1 else left[0])}


class _Handler(BaseHTTPRequestHandler):
    server: FakeRunPod

    def do_GET(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        content = json.loads(self.rfile.read(size)) if size else None
        assert self.headers["Authorization"] == f"Bearer {TOKEN}"
        code, answer = self.server.answer(self.command, self.path, content)
        body = self.server.body if self.server.body is not None else json.dumps(answer).encode() if answer else b""
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        if code == 302:
            self.send_header("Location", self.server.url + "/elsewhere")
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def fake_runpod() -> Iterator[FakeRunPod]:
    """Run the server."""
    with FakeRunPod() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()
