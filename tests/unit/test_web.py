"""The page in the browser: who may use it, what it serves, its stream, and its commands."""

from __future__ import annotations

import http.client
import io
import json
import os
import platform
import re
import socket
import ssl
import threading
import zipfile
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from modules.config.codec import export_file
from modules.config.presets import save_preset
from modules.config.schema import Config
from modules.settings.edit import replace_value
from modules.system.errors import DarkroomError
from modules.system.file_lock import Holder
from modules.system.paths import PROGRAM_ROOT, secrets_file
from tests.builders.web_page import COMMAND, ORIGIN, finished_step, log, make_run, page, started, training
from trainer.__main__ import main
from trainer.commands import BackupNow, Command, Pause, Resume, SampleNow, SaveNow, Stop, ValidateNow
from trainer.event_lines import to_line
from trainer.events import PhaseChanged, RewardMeasured, RunFailed, RunFinished
from trainer.launch import RunRequest
from trainer.run_folder.attached import DetachedProcess
from trainer.run_folder.backup import write_backup
from trainer.run_folder.choices import Answer, answer_of, ask, choices_dir, keep_pair
from trainer.run_folder.elsewhere import Elsewhere, note_elsewhere
from trainer.run_folder.event_log import EVENTS_FILE
from trainer.run_folder.inbox import INBOX_FILE, open_inbox
from trainer.run_folder.result import record_result
from trainer.run_queue import running
from trainer.run_queue.file import QueueFile
from trainer.web import actions
from trainer.web.access import access_for, is_loopback, kept_token
from trainer.web.actions import COMMANDS
from trainer.web.overview import overview_of
from trainer.web.runs import Runs, id_of, image_id, image_of, usual_workspaces
from trainer.web.serving import Certificate, PageServer
from trainer.web.starts import Start, Starts
from trainer.web.stream import Feed, Recent

PAGE = PROGRAM_ROOT / "trainer" / "web" / "page"
CERTIFICATE = PROGRAM_ROOT / "tests" / "builders" / "localhost.pem"  # with its key
PNG = bytes.fromhex("89504e470d0a1a0a")
GONE, ALIVE = Holder(0, 0.0, platform.node()), Holder.of(os.getpid())


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_run(tmp_path / "workspace")


@pytest.fixture
def queue_path(tmp_path: Path) -> Path:
    return tmp_path / "queue.json"


@pytest.fixture
def browser(run_dir: Path, queue_path: Path) -> TestClient:
    return page(run_dir.parent.parent, queue_path)


@pytest.fixture
def started_queues(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The starts of the queue, which happen in no process."""
    starts: list[str] = []

    def start(machine: str = "", *, allowed_code: Collection[str] = ()) -> tuple[Holder, Path]:
        assert not allowed_code, "the page approves nothing"
        starts.append(machine or "queue")
        return GONE, Path()

    monkeypatch.setattr(actions, "start_detached_queue", start)
    monkeypatch.setattr(running, "start_detached_queue", start)
    return starts


def messages(text: str) -> dict[str, Any]:
    """The messages of a stream by their kinds, the newest of each."""
    return {kind: json.loads(data) for kind, data in re.findall(r"^event: (\w+)\ndata: (.*)$", text, re.MULTILINE)}


# -- who may use it


def test_every_answer_has_strict_headers(browser: TestClient) -> None:
    for path in ("/", "/page.js", "/api/presets", "/api/nothing", "/nothing"):
        headers = browser.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'; ")
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


def test_the_page_loads_nothing_from_elsewhere_and_has_no_inline_code() -> None:
    for file in PAGE.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"(?m)^\s*//.*$| // .*$", "", text) or file.suffix == ".css", file.name
        assert not re.search(r"https?:", text), file.name
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", html)


@pytest.mark.parametrize(
    ("host", "is_permitted"),
    [
        ("127.0.0.1:7866", True),
        ("localhost:7866", True),
        ("[::1]:7866", True),
        ("evil.example:7866", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("192.168.1.5:7866", False),
        ("", False),
    ],
)
def test_names_of_others_are_refused(browser: TestClient, host: str, is_permitted: bool) -> None:
    """A name that an attacker lets lead here would make their page one of this origin."""
    assert browser.get("/api/presets", headers={"host": host}).status_code == (200 if is_permitted else 421)
    assert browser.get("/", headers={"host": host}).status_code == (200 if is_permitted else 421)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (COMMAND, 409),  # permitted: the queue is empty
        ({**COMMAND, "origin": ORIGIN}, 409),
        ({}, 403),
        ({"origin": ORIGIN}, 403),
        ({**COMMAND, "origin": "http://evil.example"}, 403),
        ({**COMMAND, "origin": "http://127.0.0.1:9999"}, 403),
        ({**COMMAND, "origin": "null"}, 403),
    ],
)
def test_commands_come_from_the_page_alone(browser: TestClient, headers: dict[str, str], status: int) -> None:
    assert browser.post("/api/queue", json={"action": "run"}, headers=headers).status_code == status


def test_other_sites_cannot_read(browser: TestClient) -> None:
    for site, status in (("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403)):
        assert browser.get("/api/presets", headers={"sec-fetch-site": site}).status_code == status
    assert browser.options("/api/queue", headers={"origin": "http://evil.example"}).status_code == 403


def test_an_open_address_needs_a_token(run_dir: Path, queue_path: Path) -> None:
    access = access_for("0.0.0.0", 7866, kept_token())
    browser = page(run_dir.parent.parent, queue_path, access)
    at = {"host": "192.168.1.5:7866"}
    assert browser.get("/", headers=at).status_code == 200, "the page itself has no data"
    data = [
        "/api/presets",
        "/api/stream",
        f"/api/runs/{id_of(run_dir)}/samples/x",
        f"/api/runs/{id_of(run_dir)}/files/x",
    ]
    assert {browser.get(path, headers=at).status_code for path in data} == {401}
    assert browser.post("/api/queue", json={"action": "run"}, headers={**at, **COMMAND}).status_code == 401
    for wrong in ("", "x", access.token[:-1], access.token + "x", "\ud800", None):
        given = json.dumps({"token": wrong})
        assert browser.post("/api/login", content=given, headers={**at, **COMMAND}).status_code == 401
    assert browser.post("/api/login", json={"token": access.token}, headers=at).status_code == 403
    response = browser.post("/api/login", json={"token": access.token}, headers={**at, **COMMAND})
    cookie = response.headers["set-cookie"].lower()
    assert response.status_code == 200
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    held = {**at, "cookie": f"{access.cookie}={access.token}"}
    assert browser.get("/api/presets", headers=held).status_code == 200
    assert browser.get("/api/presets", headers={**held, "host": "evil.example"}).status_code == 421
    assert browser.get("/api/presets", headers={**at, "cookie": f"{access.cookie}=x"}).status_code == 401


def test_the_own_computer_needs_a_token_if_the_user_wants_one(run_dir: Path, queue_path: Path) -> None:
    access = access_for("127.0.0.1", 7866, kept_token())
    assert page(run_dir.parent.parent, queue_path, access).get("/api/presets").status_code == 401
    assert [
        is_loopback(h) for h in ("127.0.0.1", "127.8.0.1", "::1", "localhost", "0.0.0.0", "::", "192.168.1.5", "")
    ] == [
        *[True] * 4,
        *[False] * 4,
    ]


def test_the_token_is_kept_until_it_is_removed() -> None:
    first = kept_token()
    assert len(first) >= 20
    assert kept_token() == first
    assert main(["secrets", "remove", "web_token"]) == 0
    assert kept_token() != first
    secrets_file().unlink()
    secrets_file().mkdir()  # it cannot be read
    assert kept_token() != kept_token()


# -- what it serves


def outside(browser: TestClient, run: str) -> Iterator[str]:
    """Addresses that would leave the folders if names were paths."""
    for up in ("../../../../secret.txt", "..%2f..%2f..%2fsecret.txt", "%2e%2e/%2e%2e/secret.txt", "..\\..\\secret.txt"):
        for place in (
            "/",
            f"/api/runs/{run}/samples/",
            f"/api/runs/{run}/files/",
            f"/api/runs/{run}/choices/",
            "/api/runs/",
        ):
            yield f"{place}{up}"
            yield f"{place}{up}/0"


def test_no_path_leads_outside(browser: TestClient, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    ask(run_dir, "step-1", "a zog", [PNG, PNG])
    for address in outside(browser, id_of(run_dir)):
        answer = browser.get(address)
        assert answer.status_code in (404, 405), address
        assert "secret" not in answer.text.replace("secret.txt", "")


def test_samples_are_found_in_a_list(browser: TestClient, run_dir: Path, tmp_path: Path) -> None:
    run, sample = id_of(run_dir), next((run_dir / "samples").rglob("*.png"))
    address = f"/api/runs/{run}/samples/{image_id(str(sample), run_dir)}"
    whole, small = browser.get(address), browser.get(f"{address}?small")
    assert whole.content == sample.read_bytes()
    assert whole.headers["content-type"] == "image/png"
    assert small.headers["content-type"] == "image/jpeg"
    assert image_id(str(tmp_path / "elsewhere.png"), run_dir) == ""
    assert browser.get(f"/api/runs/{run}/samples/0000").status_code == 404
    assert browser.get(f"/api/runs/0000/samples/{image_id(str(sample), run_dir)}").status_code == 404


def test_links_do_not_lead_outside(run_dir: Path, queue_path: Path, tmp_path: Path) -> None:
    """Not a linked sample, folder of samples, candidate, saved model or run."""
    outside = tmp_path / "private"
    outside.mkdir()
    secret = outside / "secret.png"
    secret.write_bytes(PNG)
    browser, run = page(run_dir.parent.parent, queue_path), id_of(run_dir)
    linked = run_dir / "samples" / "linked.png"
    linked.symlink_to(secret)
    (run_dir / "samples" / "folder").symlink_to(outside, target_is_directory=True)
    for path in (linked, run_dir / "samples" / "folder" / "secret.png"):
        assert image_of(run_dir, image_id(str(path), run_dir)) is None
    request = ask(run_dir, "step-1", "a zog", [PNG, PNG])
    request.images[0].unlink()
    request.images[0].symlink_to(secret)
    assert [browser.get(f"/api/runs/{run}/choices/step-1/{n}").status_code for n in (0, 1, 2)] == [404, 200, 404]
    (run_dir / "save").symlink_to(outside, target_is_directory=True)
    assert browser.get(f"/api/runs/{run}/files/{id_of(run_dir / 'save' / 'secret.png')}").status_code == 404
    elsewhere = make_run(tmp_path / "other")
    link = run_dir.parent / "2026-11-30_00-00-00"
    link.symlink_to(elsewhere, target_is_directory=True)
    assert Runs(lambda: [run_dir.parent.parent]).find(id_of(link)) is None
    assert Runs(lambda: [run_dir.parent.parent]).find(run) == run_dir


def test_a_result_is_sent_as_its_run_wrote_it(browser: TestClient, run_dir: Path, tmp_path: Path) -> None:
    model, saved = tmp_path / "models" / "zog.safetensors", run_dir / "save" / "zog-best.safetensors"
    for file in (model, saved):
        file.parent.mkdir()
        file.write_bytes(b"weights")
    record_result(run_dir, model, [model], step=40)
    files = messages(Feed(dict, run_dir).next())["state"]["files"]
    assert [(f["name"], f["bytes"], f["result"]) for f in files] == [
        ("zog.safetensors", 7, True),
        ("zog-best.safetensors", 7, False),
    ]
    answers = [browser.get(f"/api/runs/{id_of(run_dir)}/files/{f['id']}") for f in files]
    assert [a.content for a in answers] == [b"weights"] * 2
    assert answers[0].headers["content-disposition"] == 'attachment; filename="zog.safetensors"'
    part = browser.get(f"/api/runs/{id_of(run_dir)}/files/{files[0]['id']}", headers={"range": "bytes=3-"})
    assert (part.status_code, part.content) == (206, b"ghts")
    secret = tmp_path / "secret"
    secret.write_bytes(b"private")  # of the same size
    model.unlink()
    model.symlink_to(secret)
    changed = browser.get(f"/api/runs/{id_of(run_dir)}/files/{files[0]['id']}")
    assert (changed.status_code, "private" in changed.text) == (409, False)


def test_a_result_that_is_a_folder_is_sent_as_a_zip_file(browser: TestClient, run_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "zög 1"
    contents = {"model_index.json": b"{}", "unet/weights.safetensors": bytes(range(256)) * 9000}
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    embedding = tmp_path / "models" / "zög 1_embeddings" / "zog.safetensors"
    embedding.parent.mkdir()
    embedding.write_bytes(b"embedding")
    record_result(run_dir, folder, [*(folder / name for name in contents), embedding], step=40)
    files = {f["name"]: f["id"] for f in messages(Feed(dict, run_dir).next())["state"]["files"]}
    assert list(files) == ["zög 1.zip", "zog.safetensors"]
    answer = browser.get(f"/api/runs/{id_of(run_dir)}/files/{files['zög 1.zip']}")
    assert answer.headers["content-disposition"] == "attachment; filename*=utf-8''z%C3%B6g%201.zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        assert {i.filename: archive.read(i) for i in archive.infolist()} == {
            f"zög 1/{name}": content for name, content in contents.items()
        }
    (folder / "model_index.json").write_bytes(b"[]")
    assert browser.get(f"/api/runs/{id_of(run_dir)}/files/{files['zög 1.zip']}").status_code == 409


# -- the stream


def test_the_stream_of_a_run(run_dir: Path) -> None:
    with training(run_dir):
        feed = Feed(lambda: {"runs": []}, run_dir)
        first = feed.next()
        shown = messages(first)
        kinds = [event["kind"] for event in shown["history"]]
        assert kinds == ["started", "phase", "step", "step", "validation", "sample"]
        assert shown["history"][3] | {"step": 2, "total": 40, "loss": 0.25} == shown["history"][3]
        assert shown["state"]["running"]
        assert str(run_dir) not in first
        assert feed.next() == ""
        log(run_dir, finished_step(3, float("nan")), started(run_dir, first_step=2))
        news = feed.next()
        assert [(e["kind"], e.get("loss")) for e in messages(news)["news"]] == [("step", None), ("started", None)]
        place = re.search(r"^id: (\d+)$", news, re.MULTILINE)
        assert place is not None
        assert int(place[1]) == (run_dir / EVENTS_FILE).stat().st_size
    log(run_dir, RunFinished("finished", 40, "Finished after 40 steps."))
    last = messages(feed.next())
    assert not last["state"]["running"]
    assert last["news"][0]["status"] == "finished"


def test_the_page_states_whether_a_run_learns(run_dir: Path) -> None:
    feed = Feed(dict, run_dir)
    assert "verdict" not in messages(feed.next())
    log(run_dir, *(RewardMeasured(n, 8, 0.1 * n, 0.5, "contrast") for n in range(1, 4)), finished_step(3))
    assert messages(feed.next())["verdict"]["title"] == "Too early to say"
    log(run_dir, started(run_dir, first_step=2), finished_step(4))
    log(run_dir, *(RewardMeasured(n, 8, 0.1 * n, 0.5, "contrast", saturation=0.2) for n in (3, 5, 7, 9, 11)))
    verdict = messages(feed.next())["verdict"]
    assert (verdict["finding"], verdict["title"]) == ("learning", "Learning")
    assert verdict["reason"].startswith("The reward rose, 0.1 to 1.1, and the held-out reward did not fall")
    assert verdict["figures"].endswith("at step 11, saturation 0.2.")
    assert messages(Feed(dict, run_dir).next())["verdict"] == verdict
    events = run_dir / EVENTS_FILE
    events.write_bytes(b" " * (events.stat().st_size - 1) + b"\n")  # what was read is not read again
    log(run_dir, RewardMeasured(13, 8, 1.3, 0.5, "contrast"))
    assert messages(feed.next())["verdict"]["reason"].startswith("The reward rose, 0.1 to 1.3")
    events.unlink()
    log(run_dir, RewardMeasured(1, 8, 0.1, 0.5, "contrast"))
    assert messages(feed.next())["verdict"]["title"] == "Too early to say"


def test_a_browser_that_was_away_gets_what_follows(run_dir: Path) -> None:
    place = (run_dir / EVENTS_FILE).stat().st_size
    log(run_dir, finished_step(3))
    assert [e["step"] for e in messages(Feed(dict, run_dir, str(place)).next())["news"]] == [3]
    for nonsense in ("x", "-1", "9" * 15, "9" * 400, "\u0663"):
        assert len(messages(Feed(dict, run_dir, nonsense).next())["history"]) == 7


def test_many_steps_are_thinned_out(run_dir: Path) -> None:
    log(run_dir, *(finished_step(step) for step in range(3, 3001)))
    steps = [e["step"] for e in messages(Feed(dict, run_dir).next())["history"] if e["kind"] == "step"]
    assert 400 < len(steps) <= 600
    assert steps[-1] == 3000


def test_the_overview_is_built_once_for_all_pages() -> None:
    now, built = [0.0], list[float]()
    recent = Recent(lambda: {"built": built.append(now[0])}, 1.0, clock=lambda: now[0])
    for now[0] in (0.0, 0.5, 0.9, 1.0, 1.2, 2.5):
        recent()
    assert built == [0.0, 1.0, 2.5]


def test_a_server_streams_a_run(run_dir: Path, queue_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = PageServer(lambda: [run_dir.parent.parent], QueueFile(queue_path), host="127.0.0.1", port=0)
    thread = server.start()
    assert server.address.url == f"http://127.0.0.1:{server.port}/"
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        for path in ("/../access.py", "/..%2faccess.py", "//etc/passwd", "/%2e%2e/access.py", "/page/../../access.py"):
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            assert response.status in (400, 404), path
        connection.request("GET", f"/api/stream?run={id_of(run_dir)}")
        response = connection.getresponse()
        assert response.headers["content-type"].startswith("text/event-stream")
        read_until(response.readline, b"event: overview")
        log(run_dir, finished_step(3))
        data = read_until(response.readline, b"event: news", more=1)
        assert json.loads(data.removeprefix(b"data: "))[0]["step"] == 3
        with pytest.raises(DarkroomError, match=rf"port {server.port}: "):
            PageServer(list, QueueFile(queue_path), host="127.0.0.1", port=server.port)
    finally:
        server.stop()
        thread.join(120)
        connection.close()
    assert not thread.is_alive()
    assert capsys.readouterr().err == "", "an open page is cut off without a traceback"


def test_a_server_with_a_certificate_encrypts(queue_path: Path, tmp_path: Path) -> None:
    certificate = Certificate(CERTIFICATE)
    server = PageServer(
        list, QueueFile(queue_path), host="127.0.0.1", port=0, token=kept_token(), certificate=certificate
    )
    thread = server.start()
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=30, context=trusting)
    own = f"https://127.0.0.1:{server.port}"
    body = json.dumps({"token": server.access.token})
    try:
        for origin, status in ((own, 200), (own.replace("https", "http"), 403)):
            connection.request("POST", "/api/login", body, {"x-darkroom": "1", "origin": origin})
            response = connection.getresponse()
            response.read()
            assert response.status == status
            if status == 200:
                assert "; secure" in response.headers["set-cookie"].lower()
    finally:
        server.stop()
        thread.join(120)
        connection.close()
    assert server.address.url.startswith(f"{own}/#token=")
    for files in (Certificate(tmp_path / "none.pem"), Certificate(PAGE / "net.js"), Certificate(CERTIFICATE, PAGE)):
        with pytest.raises(DarkroomError, match="cannot be used for HTTPS"):
            PageServer(list, QueueFile(queue_path), host="127.0.0.1", port=0, certificate=files)


def read_until(readline: Callable[[], bytes], begin: bytes, more: int = 0) -> bytes:
    line = readline()
    while not line.startswith(begin):
        assert line, "the stream ended"
        line = readline()
    for _ in range(more):
        line = readline()
    return line


def test_the_overview(browser: TestClient, run_dir: Path, queue_path: Path) -> None:
    QueueFile(queue_path).change(lambda queue: queue.add("zog", Config()))
    runs, queue = Runs(lambda: [run_dir.parent.parent]), QueueFile(queue_path)
    starts = Starts(queue)
    with training(run_dir):
        shown = overview_of(runs, queue, starts)
        log(run_dir, started(run_dir, first_step=1))
        (resumed,) = overview_of(runs, queue, starts)["runs"]
        assert (resumed["step"], resumed["left"]) == (1, None), "the time left was that of the earlier attempt"
    (run,), (item,) = shown["runs"], shown["queue"]["items"]
    assert (run["name"], run["status"], run["step"], run["total"], run["left"]) == ("zog", "running", 2, 40, 38.0)
    assert (run["phase"], run["thumb"]) == (
        "Training",
        image_id(run_dir.name + "/samples/01 a zog/step-00000002.png", run_dir),
    )
    assert (item["name"], item["state"], shown["queue"]["running"]) == ("zog", "waiting", False)
    assert overview_of(runs, queue, starts)["runs"][0]["status"] == "crashed"
    starts.add_queue(ALIVE)
    now = overview_of(runs, queue, starts)["queue"]
    assert (now["running"], now["can_run"]) == (True, False), "it has been started, and loads"
    queue_path.write_text("{")
    assert "cannot be read" in overview_of(runs, queue, starts)["queue"]["problem"]


def test_the_time_left_counts_what_lies_between_steps_but_no_pause(run_dir: Path, queue_path: Path) -> None:
    """The window counted it, the page did not."""
    log(run_dir, started(run_dir), finished_step(1), at="2026-11-29T12:00:00")
    log(run_dir, PhaseChanged("validating"), at="2026-11-29T12:00:01")
    log(run_dir, PhaseChanged("paused"), at="2026-11-29T12:00:04")
    log(run_dir, PhaseChanged("training"), at="2026-11-29T12:10:04")
    log(run_dir, finished_step(2), at="2026-11-29T12:10:06")
    runs, queue = Runs(lambda: [run_dir.parent.parent]), QueueFile(queue_path)
    with training(run_dir):
        (run,) = overview_of(runs, queue, Starts(queue))["runs"]
    assert (run["phase"], run["left"]) == ("Training", 6.0 * 38)


# -- acting


class Desk:
    """Collects what a run would get."""

    def __init__(self, num_expected: int) -> None:
        self.commands: list[Command] = []
        self.is_full = threading.Event()
        self._num_expected = num_expected

    def put(self, command: Command, /) -> None:
        self.commands.append(command)
        if len(self.commands) == self._num_expected:
            self.is_full.set()


def test_every_command_reaches_the_run(browser: TestClient, run_dir: Path) -> None:
    address, desk = f"/api/runs/{id_of(run_dir)}/command", Desk(len(COMMANDS))
    refused = browser.post(address, json={"command": "stop"}, headers=COMMAND)
    assert (refused.status_code, refused.json()["message"]) == (409, "The run does not train any more.")
    with training(run_dir), open_inbox(run_dir / INBOX_FILE, desk):
        for name in COMMANDS:
            assert browser.post(address, json={"command": name}, headers=COMMAND).status_code == 200
        assert browser.post(address, json={"command": "format"}, headers=COMMAND).status_code == 409
        assert desk.is_full.wait(120)
    assert desk.commands == [Stop(), Pause(), Resume(), SampleNow(), ValidateNow(), BackupNow(), SaveNow()]


def test_a_stopped_run_is_resumed(
    browser: TestClient, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[RunRequest] = []
    process = DetachedProcess(GONE, tmp_path / "child.log")

    def start(request: RunRequest) -> DetachedProcess:
        requests.append(request)
        return process

    monkeypatch.setattr(actions, "start_detached", start)
    address = f"/api/runs/{id_of(run_dir)}/command"

    def resume() -> tuple[int, str]:
        response = browser.post(address, json={"command": "resume_run"}, headers=COMMAND)
        return response.status_code, response.json()["message"]

    assert resume()[0] == 409, "it has no backup"
    config = replace_value(Config(), "training.epochs", 7)
    written = datetime(2026, 11, 29)
    write = partial(export_config, config)
    backup = write_backup(run_dir, step=2, epoch=1, now=written, write=write)
    assert resume() == (200, "The run resumes at step 2.")
    ((request),) = requests
    assert (request.kind, request.resume_from, request.config.training.epochs) == ("resume", backup.path, 7)
    with training(run_dir):
        assert resume() == (409, "Another run trains on this computer. Resume this one when it has ended.")
    note_elsewhere(run_dir, Elsewhere("box", "job", "~/darkroom/jobs/job", str(tmp_path / "zog.safetensors")))
    followed: list[tuple[Path, bool]] = []

    def following(run_dir: Path, *, resumes: bool = False) -> DetachedProcess:
        followed.append((run_dir, resumes))
        return process

    monkeypatch.setattr(actions, "start_following", following)
    assert resume() == (200, "The run resumes on box.")
    with training(run_dir):
        assert resume()[0] == 409
    follow = {"command": "follow"}
    assert browser.post(address, json=follow, headers=COMMAND).json()["message"] == "Connecting with box."
    with training(run_dir):
        assert browser.post(address, json=follow, headers=COMMAND).status_code == 409
    assert followed == [(run_dir, True), (run_dir, False)]


def test_a_start_is_shown_until_the_run_trains_and_happens_once(
    browser: TestClient, run_dir: Path, queue_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch takes a while to load: the page showed the run as stopped, and a second click began a second process."""
    write_backup(run_dir, step=2, epoch=1, now=datetime(2026, 11, 29), write=partial(export_config, Config()))
    process, begun = DetachedProcess(ALIVE, tmp_path / "child.log"), list[RunRequest]()
    monkeypatch.setattr(actions, "start_detached", lambda request: begun.append(request) or process)

    def resume() -> tuple[int, str]:
        address = f"/api/runs/{id_of(run_dir)}/command"
        response = browser.post(address, json={"command": "resume_run"}, headers=COMMAND)
        return response.status_code, response.json()["message"]

    assert resume() == (200, "The run resumes at step 2.")
    assert resume() == (409, "The run starts already.")
    preset = save_preset(Config(), "Mine")
    said = browser.post("/api/start", json={"preset": id_of(preset.path)}, headers=COMMAND).json()["message"]
    assert said == "Mine is in the queue. Run the queue when the current run has ended."
    assert len(begun) == 1
    starts = Starts(QueueFile(queue_path))
    starts.add(run_dir, process)
    state = messages(Feed(dict, run_dir, start_of=starts.of).next())["state"]
    assert (state["starting"], state["refused"]) == (True, "")
    refused = DetachedProcess(GONE, tmp_path / "other.log")
    refused.events_file.write_text(f"{to_line(RunFailed('There are no images.', 'Choose a folder.'))}\n")
    starts.add(run_dir, refused)
    state = messages(Feed(dict, run_dir, start_of=starts.of).next())["state"]
    assert (state["starting"], state["refused"]) == (False, "There are no images. Choose a folder.")
    starts.add(run_dir, process)
    with training(run_dir):
        assert starts.of(run_dir) == Start()
    assert starts.of(run_dir) == Start(), "it has trained"


def test_a_start_that_only_prints_its_reason_is_shown_as_refused(
    run_dir: Path, queue_path: Path, tmp_path: Path
) -> None:
    """As of a machine that is not in the list any more: the page showed the run as before, without a word."""
    starts, refused = Starts(QueueFile(queue_path)), DetachedProcess(GONE, tmp_path / "child.log")
    refused.log.write_text("warning\nThere is no machine box.\nAdd it first.\n")
    starts.add(run_dir, refused)
    assert starts.of(run_dir) == Start(refusal="There is no machine box. Add it first.")
    refused.log.write_text("Traceback (most recent call last):\n  ...\nKeyError: 1\n")
    assert starts.of(run_dir).refusal.startswith("The run ended unexpectedly")
    refused.events_file.write_text(f"{to_line(RunFinished('stopped', 0, 'Stopped.'))}\n")
    assert starts.of(run_dir) == Start(), "followed to its end"


def test_a_connection_with_another_machine_does_not_hold_up_this_computer(
    browser: TestClient, run_dir: Path, tmp_path: Path, started_queues: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it was tried, another run trained on this computer, as the page had it."""
    note_elsewhere(run_dir, Elsewhere("box", "job", "~/darkroom/jobs/job", str(tmp_path / "zog.safetensors")))
    process = DetachedProcess(ALIVE, tmp_path / "child.log")
    monkeypatch.setattr(actions, "start_following", lambda run_dir: process)
    address, follow = f"/api/runs/{id_of(run_dir)}/command", {"command": "follow"}
    assert browser.post(address, json=follow, headers=COMMAND).json()["message"] == "Connecting with box."
    preset = save_preset(Config(), "Mine")
    said = browser.post("/api/start", json={"preset": id_of(preset.path)}, headers=COMMAND).json()["message"]
    assert (said, started_queues) == ("Mine starts.", ["queue"])


def test_two_requests_at_the_same_time_begin_one_process(
    browser: TestClient, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one looked for a start before the first one had noted its own."""
    write_backup(run_dir, step=2, epoch=1, now=datetime(2026, 11, 29), write=partial(export_config, Config()))
    address, answers, begun = f"/api/runs/{id_of(run_dir)}/command", list[int](), list[RunRequest]()
    is_second = threading.Event()

    def resume() -> None:
        answers.append(browser.post(address, json={"command": "resume_run"}, headers=COMMAND).status_code)

    second = threading.Thread(target=resume)

    def start(request: RunRequest) -> DetachedProcess:
        begun.append(request)
        if len(begun) == 1:
            second.start()
            is_second.wait(0.5)  # comes at once if nothing holds the second request
        else:
            is_second.set()
        return DetachedProcess(ALIVE, tmp_path / "child.log")

    monkeypatch.setattr(actions, "start_detached", start)
    resume()
    second.join()
    assert (len(begun), sorted(answers)) == (1, [200, 409])


def test_the_queue_is_started_once(browser: TestClient, queue_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(actions, "start_detached_queue", lambda: (begun.append("queue"), (ALIVE, Path()))[1])
    preset = save_preset(Config(), "Mine")

    def start() -> str:
        answer = browser.post("/api/start", json={"preset": id_of(preset.path)}, headers=COMMAND)
        return str(answer.json()["message"])

    assert [start(), start()] == ["Mine starts.", "Mine is in the queue, which is running."]
    again = browser.post("/api/queue", json={"action": "run"}, headers=COMMAND)
    assert again.json()["message"] == "The queue is running already."
    assert begun == ["queue"]


def test_what_a_paused_run_is_asked_for_waits_until_it_continues(browser: TestClient, run_dir: Path) -> None:
    address = f"/api/runs/{id_of(run_dir)}/command"
    with training(run_dir):
        answers = []
        for phase in ("paused", "training"):
            log(run_dir, PhaseChanged(phase))
            answers.append(browser.post(address, json={"command": "sample"}, headers=COMMAND).json()["message"])
    assert answers == ["Samples follow once the run continues.", "Samples follow after this step."]


def export_config(config: Config, folder: Path) -> None:
    export_file(config, folder / "config.json")


def test_choices(browser: TestClient, run_dir: Path) -> None:
    requests = [ask(run_dir, f"step-{n}", "a zog", [PNG + bytes([n, i]) for i in range(3)]) for n in range(4)]
    choices = messages(Feed(dict, run_dir).next())["state"]["choices"]
    assert [(c["name"], c["images"], c["open"]) for c in choices] == [(f"step-{n}", 3, True) for n in range(4)]

    def post(name: str, body: Any) -> int:
        return browser.post(f"/api/runs/{id_of(run_dir)}/choices/{name}", json=body, headers=COMMAND).status_code

    assert post("step-0", {"best": 2, "worst": 0}) == 200
    assert post("step-1", {"verdict": "tie"}) == 200
    assert post("step-2", {"verdict": "skip"}) == 200
    given = [answer_of(request) for request in requests]
    assert given == [Answer("chosen", 2, 0), Answer("tie"), Answer("skip"), None]
    for wrong in (
        {"best": 1, "worst": 1},
        {"best": 0, "worst": 3},
        {"best": "0", "worst": 1},
        {"verdict": "all"},
        {},
        [],
        None,
    ):
        assert post("step-3", wrong) == 409
    assert post("step-9", {"verdict": "tie"}) == 409
    assert post("step-0", {"undo": True}) == 200
    assert answer_of(requests[0]) is None
    post("step-0", {"best": 1, "worst": 0})
    keep_pair(run_dir, requests[0], Answer("chosen", 1, 0))
    assert post("step-0", {"undo": True}) == 409, "the run has used it"
    assert sorted(p.name for p in (choices_dir(run_dir) / "open").iterdir()) == [f"step-{n}" for n in range(4)]


def test_the_order_of_the_queue(browser: TestClient, queue_path: Path, started_queues: list[str]) -> None:
    file = QueueFile(queue_path)
    for name in ("a", "b", "c"):
        file.change(lambda queue, name=name: queue.add(name, Config()))

    def post(action: str, number: int) -> int:
        return browser.post("/api/queue", json={"action": action, "number": number}, headers=COMMAND).status_code

    assert [post("up", 3), post("up", 3), post("down", 1)] == [200] * 3
    assert [item.name for item in file.read().items] == ["c", "b", "a"]
    assert post("remove", 2) == 200
    assert [item.name for item in file.read().items] == ["c", "a"]
    assert [post("remove", 9), post("skip", 1), post("erase", 1)] == [409] * 3
    assert browser.post("/api/queue", json={"action": "run"}, headers=COMMAND).json()["message"] == "The queue starts."
    assert started_queues == ["queue"]
    file.change(lambda queue: queue.remove([1, 3]).add("d", Config(), machine="box"))
    assert browser.post("/api/queue", json={"action": "run"}, headers=COMMAND).json()["message"] == "The queue starts."
    assert started_queues == ["queue", "box"]


def test_a_saved_config_starts(browser: TestClient, run_dir: Path, queue_path: Path, started_queues: list[str]) -> None:
    preset = save_preset(Config(), "Mine")
    presets = {p["name"]: p["id"] for p in browser.get("/api/presets").json()}
    assert list(presets)[:2] == ["Mine", "#demo"]

    def start(preset_id: str) -> tuple[int, str]:
        response = browser.post("/api/start", json={"preset": preset_id}, headers=COMMAND)
        return response.status_code, response.json()["message"]

    assert start(presets["Mine"]) == (200, "Mine starts.")
    assert started_queues == ["queue"]
    with training(run_dir):
        assert start(presets["Mine"])[1].startswith("Mine is in the queue. Run the queue when")
    lock = QueueFile(queue_path).hold()
    assert start(presets["Mine"]) == (200, "Mine is in the queue, which is running.")
    lock.release()
    assert started_queues == ["queue"]
    assert [item.name for item in QueueFile(queue_path).read().items] == ["Mine"] * 3
    preset.path.write_text("{")
    assert start(presets["Mine"])[0] == 409
    assert start("0000")[0] == 409


def test_bodies_that_are_not_commands(browser: TestClient) -> None:
    for body, status in ((b"", 409), (b"[1]", 409), (b"{", 409), (b"[" * 4000, 409), (b'"' + b"x" * 9000, 413)):
        assert browser.post("/api/queue", content=body, headers=COMMAND).status_code == status
    assert browser.post("/api/queue", json={"action": "up", "number": "1"}, headers=COMMAND).status_code == 409


def test_usual_workspaces(run_dir: Path, queue_path: Path, tmp_path: Path) -> None:
    config = replace_value(Config(), "general.workspace_dir", str(tmp_path / "queued"))
    queue = QueueFile(queue_path)
    queue.change(lambda now: now.add("a", config))
    save_preset(replace_value(Config(), "general.workspace_dir", str(tmp_path / "mine")), "Mine")
    found = usual_workspaces(queue.read)
    assert {tmp_path / "queued", tmp_path / "mine", PROGRAM_ROOT / "workspace" / "run"} <= set(found)
    queue_path.write_text("{")
    assert {tmp_path / "mine"} <= set(usual_workspaces(queue.read)), "the runs are shown without the queue"


def test_the_command_line_refuses_a_wrong_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["web", "--host", "not an address", "--port", "0"]) == 2
    assert "The page cannot be served at not an address" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["web", "--port", str(taken.getsockname()[1])]) == 2
    assert "attempting" not in (message := capsys.readouterr().err)
    assert message.startswith("The page cannot be served at 127.0.0.1, port ")
    assert main(["web", "--port", "0", "--key", "key.pem"]) == 2, "it would be served without encryption"
    assert "but no certificate" in capsys.readouterr().err
