"""Rented machines: a server that answers as RunPod does, and what becomes of the list of machines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from http.client import IncompleteRead
from pathlib import Path

import pytest

from modules.system.errors import DarkroomError
from modules.system.secrets import with_secret
from modules.system.secrets_file import load_secrets, save_secrets
from tests.builders.runpod import ADDRESS, TOKEN, FakeRunPod, fake_runpod
from trainer.__main__ import main
from trainer.remote import renting
from trainer.remote.providers import Pod, PodRequest, RefusedError
from trainer.remote.record import Remote, RemotesFile
from trainer.remote.runpod import RunPod


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRunPod]:
    with fake_runpod() as running:
        monkeypatch.setattr(RunPod, "url", running.url)
        monkeypatch.setattr(renting, "_POLL_SECONDS", 0.0)
        yield running


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
    [(_, path, content)] = [asked for asked in server.asked if asked[0] == "POST"]
    assert path == "/v2/pods"
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
    assert re.search(message, " ".join(capsys.readouterr().err.split()))
    assert not RemotesFile().read(), "nothing that was not rented is in the list"
    assert not any("elsewhere" in path for _, path, _ in server.asked)


@pytest.mark.usefixtures("with_token", "server")
def test_the_cards_that_can_be_rented_are_listed_with_their_prices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["remote", "offers"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "0.43 an hour 24 GB NVIDIA L4 none free",
        "0.69 an hour 24 GB NVIDIA GeForce RTX 4090 many free",
        "2.99 an hour 80 GB NVIDIA H100 80GB HBM3 few free",
    ]
    assert [offer.label for offer in renting.offers()] == ["L4odd", "RTX 4090", "H100 SXM"]


@pytest.mark.usefixtures("with_token")
def test_a_machine_whose_answer_was_lost_is_in_the_list(server: FakeRunPod, key: Path) -> None:
    server.loses_answer = True
    assert main(["remote", "rent", "pod", "--card", "x", "--key", str(key)]) == 0
    assert RemotesFile().find("pod").pod == "pod1"


@pytest.mark.usefixtures("with_token")
@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("status", [402, 504])
def test_only_a_refused_rent_is_not_looked_for(
    server: FakeRunPod,
    key: Path,
    is_lost: bool,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is not in the list; unless the provider has refused it, it may still appear, and the user is to look."""
    create = RunPod.create

    def fail(self: RunPod, request: PodRequest) -> Pod:
        server.status = status
        try:
            return create(self, request)
        finally:
            server.status = 503 if is_lost else 0

    monkeypatch.setattr(RunPod, "create", fail)
    assert main(["remote", "rent", "pod", "--card", "x", "--key", str(key)]) == 2
    assert ("whether darkroom-pod exists there" in capsys.readouterr().err) == (status == 504)
    assert not RemotesFile().read()


def test_an_answer_that_is_cut_off_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Opener:
        def open(self, _request: object, timeout: float) -> None:
            raise IncompleteRead(b"{")

    monkeypatch.setattr("trainer.remote.runpod.build_opener", lambda _handler: Opener())
    with pytest.raises(DarkroomError, match="cannot be reached") as lost:
        RunPod(TOKEN).read("pod1")
    assert not isinstance(lost.value, RefusedError)


@pytest.mark.usefixtures("with_token")
def test_a_name_that_the_account_has_already_is_not_rented_again(
    server: FakeRunPod, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.names["other"] = "darkroom-pod"
    assert main(["remote", "rent", "pod", "--card", "x", "--key", str(key)]) == 2
    assert "There is a machine darkroom-pod at RunPod already" in capsys.readouterr().err
    assert "POST" not in [method for method, *_ in server.asked]


@pytest.mark.usefixtures("with_token")
def test_an_interrupted_rent_says_what_costs(
    server: FakeRunPod, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_self: RunPod, _pod: object) -> Pod:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunPod, "read", interrupt)
    assert main(["remote", "rent", "pod", "--card", "x", "--key", str(key)]) == 130
    assert "pod is rented, and costs. To delete it: remote end pod --delete" in capsys.readouterr().out
    assert server.pods
    monkeypatch.setattr(RunPod, "create", interrupt)
    assert main(["remote", "rent", "crate", "--card", "x", "--key", str(key)]) == 130
    assert "whether darkroom-crate exists: it would cost" in capsys.readouterr().out


def test_the_address_may_be_in_either_place() -> None:
    pods = ({"runtime": ADDRESS}, {"ssh": {"proxy": None, "direct": {"host": "203.0.113.9", "port": 10341}}})
    for facts in pods:
        pod = RunPod(TOKEN)._pod({"id": "a", "status": "RUNNING", **facts})
        assert (pod.host, pod.port) == ("203.0.113.9", 10341)
    assert not RunPod(TOKEN)._pod({"id": "a", "status": "STARTING", "ssh": {"direct": None}, "runtime": None}).host


@pytest.mark.usefixtures("with_token")
def test_a_machine_that_cannot_be_listed_does_not_cost(
    server: FakeRunPod, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: RemotesFile, _remote: Remote) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RemotesFile, "add", full)
    main(["remote", "rent", "pod", "--card", "x", "--key", str(key)])
    assert "POST" in [method for method, *_ in server.asked]
    assert not server.pods


@pytest.mark.usefixtures("with_token")
def test_one_that_can_neither_be_listed_nor_deleted_is_named(
    server: FakeRunPod, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_self: RemotesFile, _remote: Remote) -> None:
        server.status = 503
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RemotesFile, "add", full)
    assert main(["remote", "rent", "pod", "--card", "x", "--key", str(key)]) == 1
    printed = capsys.readouterr().err
    assert "darkroom-pod is rented and costs money" in printed
    assert "could not be added to the list: No space left on device." in printed
    assert "Delete it on the provider's page" in printed
    assert server.pods


@pytest.mark.usefixtures("with_token")
def test_the_wait_for_an_address_keeps_what_was_changed_meanwhile(
    server: FakeRunPod, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = RunPod.read

    def read_and_change(self: RunPod, pod: str) -> Pod:
        RemotesFile().add(replace(RemotesFile().find("pod"), pod_after="stop"))
        return read(self, pod)

    monkeypatch.setattr(RunPod, "read", read_and_change)
    rent = ["remote", "rent", "pod", "--card", "x", "--key", str(key)]
    assert main(rent) == 0
    assert (RemotesFile().find("pod").host, RemotesFile().find("pod").pod_after) == ("203.0.113.9", "stop")
    server.status = 503
    assert main(["remote", "start", "pod"]) == 2
    assert server.pods


def test_the_record_of_a_rented_machine_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """It would cost without being in the list."""
    rented = Remote("pod", "", provider="runpod", pod="pod1")
    RemotesFile().add(rented)
    assert main(["remote", "add", "pod", "--host", "crate"]) == 2
    assert "the name of a rented machine" in capsys.readouterr().err
    assert RemotesFile().find("pod") == rented
    RemotesFile().add(replace(rented, num_devices=2))
    assert main(["remote", "remove", "pod"]) == 0
    assert "It stays rented and " in capsys.readouterr().out


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
    assert "trainer secrets set cloud.api_key" in capsys.readouterr().err
    assert main(["remote", "rent", "pod", "--card", "x", "--key", str(key) + "2"]) == 2
    assert "id2.pub cannot be read" in capsys.readouterr().err
    RemotesFile().add(Remote("mine", "host"))
    assert main(["remote", "end", "mine"]) == 2
    assert "not rented through Darkroom" in capsys.readouterr().err
    assert not server.asked
