"""Rented machines: a server that answers as RunPod does, and what becomes of the list of machines."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from modules.system.errors import DarkroomError
from modules.system.secrets import with_secret
from modules.system.secrets_file import load_secrets, save_secrets
from trainer.__main__ import main
from trainer.remote import renting
from trainer.remote.providers import Pod
from trainer.remote.record import Remote, RemotesFile
from trainer.remote.runpod import RunPod

TOKEN = "rpa_0123456789abcdef"
ADDRESS = {"ports": [{"private": 8888, "type": "http", "ip": "", "public": 0},
                     {"private": 22, "public": 10341, "type": "tcp", "ip": "203.0.113.9"}]}  # fmt: skip


class FakeRunPod(ThreadingHTTPServer):
    """Pods by id, each with the answers that are still to come for it; the last one stays."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str, Any]] = []
        self.status = 0
        self.body: bytes | None = None
        self.pods: dict[str, list[dict[str, Any]]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v2"

    def answer(self, method: str, path: str, content: Any) -> tuple[int, Any]:
        self.asked.append((method, path, content))
        if self.status:
            return self.status, {"title": "Bad", "status": self.status, "detail": "no card of this kind is free"}
        if self.body is not None:
            return 200, None
        pod = path.split("/")[3] if path.count("/") > 2 else "pod1"
        if method == "POST" and path == "/v2/pods":
            states = [{"status": "PROVISIONING", "runtime": None}, {"status": "STARTING", "runtime": {"ports": None}}]
            self.pods[pod] = [*states, {"status": "RUNNING", "runtime": ADDRESS}]
            return 201, {"id": pod, "status": "PROVISIONING", "cost": 0.69}
        if pod not in self.pods:
            return 404, {"title": "pod not found"}
        if method == "DELETE":
            del self.pods[pod]
            return 204, None
        if path.endswith("/action"):
            starts = [{"status": "RUNNING", "runtime": ADDRESS}] if content == {"action": "start"} else []
            self.pods[pod] = [{"status": "EXITED", "runtime": None}, *starts]
            return 200, {"id": pod}
        states = self.pods[pod]
        return 200, {"id": pod, "cost": 0.69, **(states.pop(0) if len(states) > 1 else states[0])}


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


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRunPod]:
    with FakeRunPod() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        monkeypatch.setattr(RunPod, "url", running.url)
        monkeypatch.setattr(renting, "_POLL_SECONDS", 0.0)
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    (tmp_path / "id.pub").write_text("ssh-ed25519 AAAA me\n")
    return tmp_path / "id"


@pytest.fixture
def with_token() -> None:
    save_secrets(with_secret(load_secrets().secrets, "cloud.api_key", TOKEN))


@pytest.mark.usefixtures("with_token")
def test_a_machine_is_rented_stopped_started_and_deleted(
    server: FakeRunPod, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rent = ["remote", "rent", "pod", "--card", "NVIDIA L4", "--key", str(key), "--volume", "80", "--after", "stop"]
    assert main(rent) == 0
    [(method, path, content), *_] = server.asked
    assert (method, path) == ("POST", "/v2/pods")
    assert content["gpu"] == {"id": "NVIDIA L4", "count": 1}
    assert content["mounts"] == {"persistent": {"size": 80, "path": "/workspace"}}
    assert content["env"] == {"PUBLIC_KEY": "ssh-ed25519 AAAA me"}
    assert content["ports"] == ["22/tcp"]
    remote = RemotesFile().find("pod")
    assert (remote.host, remote.port, remote.user) == ("203.0.113.9", 10341, "root")
    assert (remote.folder, remote.price_per_hour) == ("/workspace/darkroom", 0.69)
    assert (remote.provider, remote.pod, remote.pod_after) == ("runpod", "pod1", "stop")
    printed = capsys.readouterr().out
    assert "203.0.113.9:10341, for 0.69 an hour" in printed
    assert "remote check pod --new-key" in printed
    assert main(rent) == 2
    assert "There is a machine pod already" in capsys.readouterr().err
    assert main(["remote", "end", "pod"]) == 0
    assert server.pods["pod1"][0]["status"] == "EXITED"
    assert main(["remote", "start", "pod"]) == 0
    assert ("POST", "/v2/pods/pod1/action", {"action": "start"}) in server.asked
    assert main(["remote", "end", "pod", "--delete"]) == 0
    assert not server.pods
    assert not RemotesFile().read()
    assert TOKEN not in capsys.readouterr().out


@pytest.mark.usefixtures("with_token")
@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (402, None, r"no card of this kind is free \(HTTP 402\).*credit"),
        (302, None, "HTTP 302"),
        (0, b"<html>", "did not answer with JSON"),
        (0, b"[1]", "something that is not a pod"),
    ],
)
def test_what_the_provider_refuses_is_one_sentence(
    server: FakeRunPod,
    key: Path,
    status: int,
    body: bytes | None,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.status, server.body = status, body
    with pytest.raises(DarkroomError, match=message):
        RunPod(TOKEN).read("pod1")
    assert main(["remote", "rent", "pod", "--card", "x", "--key", str(key)]) == 2
    assert "whether darkroom-pod exists there" in capsys.readouterr().err
    assert not RemotesFile().read(), "nothing that was not rented is in the list"
    assert not any("elsewhere" in path for _, path, _ in server.asked)


@pytest.mark.usefixtures("with_token")
def test_a_machine_that_cannot_be_listed_does_not_cost(
    server: FakeRunPod, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: RemotesFile, _remote: Remote) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RemotesFile, "add", full)
    main(["remote", "rent", "pod", "--card", "x", "--key", str(key)])
    assert server.asked[0][0] == "POST"
    assert not server.pods


@pytest.mark.usefixtures("with_token")
def test_one_that_fails_to_start_stays_in_the_list(
    server: FakeRunPod, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RunPod, "read", lambda _self, pod: Pod(pod, "failed"))
    assert main(["remote", "rent", "pod", "--card", "x", "--key", str(key)]) == 2
    assert "delete it with: remote end pod --delete" in capsys.readouterr().err
    remote = RemotesFile().find("pod")
    assert remote.pod == "pod1"
    assert main(["remote", "check", "pod"]) == 2
    assert "pod has no address.\nStart it with: remote start pod" in capsys.readouterr().err


def test_without_a_token_or_a_key_nothing_is_rented(
    server: FakeRunPod, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["remote", "rent", "pod", "--card", "x", "--key", str(key)]) == 2
    assert "secrets set cloud.api_key" in capsys.readouterr().err
    assert main(["remote", "rent", "pod", "--card", "x", "--key", str(key) + "2"]) == 2
    assert "id2.pub cannot be read" in capsys.readouterr().err
    RemotesFile().add(Remote("mine", "host"))
    assert main(["remote", "end", "mine"]) == 2
    assert "not rented through Darkroom" in capsys.readouterr().err
    assert not server.asked
