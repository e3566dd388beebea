"""The window of machines, and the choice of the machine that the next run trains on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from modules.system.errors import DarkroomError
from modules.system.paths import ssh_key_file
from modules.system.secrets import with_secret
from modules.system.secrets_file import load_secrets, save_secrets
from tests.builders.runpod import TOKEN, FakeRunPod, fake_runpod
from tests.builders.ssh import SSHD, WHY_NOT, Server, ssh_server
from tests.ui.conftest import Window
from trainer.child.run import arguments_of
from trainer.launch import RunRequest
from trainer.remote import renting
from trainer.remote.providers import Pod, PodRequest
from trainer.remote.record import Remote, RemotesFile
from trainer.remote.renting import RentSettings
from trainer.remote.runpod import RunPod
from trainer.run_folder.fork import ForkSource
from ui.features.remote.rent_window import RentWindow
from ui.features.remote.renting import Renting, _rent, _Task
from ui.features.remote.window import MachinesWindow
from ui.features.tokens import SecretsDialog
from ui.widgets.dialog import bring_to_front


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("ssh")
    with ssh_server(folder, folder / "machine", {"PYTHONDONTWRITEBYTECODE": "1"}) as running:
        yield running


def opened(window: Window) -> MachinesWindow:
    window.app.context.actions.run("machines")
    window.settle()
    machines = bring_to_front(window.app.root, MachinesWindow)
    assert machines is not None
    return machines


def texts(machines: MachinesWindow, **values: str) -> None:
    for name, value in values.items():
        machines.record.texts[name].set(value)


@pytest.mark.skipif(SSHD is None, reason=WHY_NOT)
def test_a_machine_is_added_checked_and_trains_the_next_run(
    ready: Window, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = json.dumps({"version": "2.0", "devices": 0})
    monkeypatch.setattr("trainer.remote.checking._TORCH", f"print({found!r})")  # its import takes seconds
    bar, app = ready.app.shell.bottom_bar, ready.app
    assert not bar.machine.winfo_manager()  # there is no choice
    machines, remote = opened(ready), server.remote
    machines.buttons["check"].invoke()
    assert machines.findings.cget("text") == "Give the machine a name."
    texts(machines, name="box", host=remote.host, port=str(remote.port), key_file=remote.key_file)
    texts(machines, folder=remote.folder, python=remote.python, num_devices="two")
    machines.buttons["check"].invoke()
    assert "whole numbers" in machines.findings.cget("text")
    texts(machines, num_devices="1", price_per_hour="0.5")
    ready.asked.answers = {"choose": "refuse", "confirm_start": True}
    ready.asked.answers |= {"ask_file": Path(remote.key_file)}
    texts(machines, key_file="/nowhere/key")
    machines.buttons["check"].invoke()
    ready.wait_until(lambda: "does not exist: /nowhere/key" in machines.findings.cget("text"), "the missing key")
    machines.record.browse("key_file")
    machines.buttons["check"].invoke()
    ready.wait_until(lambda: "was not accepted" in machines.findings.cget("text"), "the refusal")
    assert "SHA256:" in ready.asked.asked("choose")[0][1]
    ready.asked.answers["choose"] = "accept"
    machines.buttons["check"].invoke()
    ready.wait_until(lambda: "PyTorch 2.0, which" in machines.findings.cget("text"), "the findings")
    assert machines.warnings.cget("text").splitlines()[-1].startswith("Cards: None")
    assert RemotesFile().find("box") == replace(remote, price_per_hour=0.5)
    machines.close()
    ready.settle()
    assert bar.machine.cget("text") == "This computer ▾"
    bar.make_machines_menu().invoke(1)
    ready.settle()
    assert bar.machine.cget("text") == "On box ▾"
    assert app.machines.note == app.starter.machine_note == "Trains on box, for 0.5 an hour."
    app.starter.prepare_fork(ForkSource(tmp_path, "run", 3, tmp_path / "lora.safetensors"), app.form.config)
    ready.settle()
    assert not bar.machine.winfo_manager(), "a fork trains here"
    assert app.starter.machine_note == ""
    app.starter.cancel_fork()
    app.context.actions.run("start")
    ready.wait_until(lambda: app.context.session.request is not None, "the start")
    request = app.context.session.request
    assert request is not None
    assert request.on == "box"
    assert "--on=box" in arguments_of(request, Path("config.json"))


@pytest.fixture
def runpod(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRunPod]:
    with fake_runpod() as running:
        monkeypatch.setattr(RunPod, "url", running.url)
        monkeypatch.setattr(renting, "_POLL_SECONDS", 0.0)
        yield running


def store_key() -> None:
    save_secrets(with_secret(load_secrets().secrets, "cloud.api_key", TOKEN))


def rent_window(window: Window, machines: MachinesWindow) -> RentWindow:
    machines.buttons["rent"].invoke()
    window.settle()
    opened = bring_to_front(window.app.root, RentWindow)
    assert opened is not None
    return opened


def test_a_machine_is_rented_stopped_started_and_deleted(window: Window, runpod: FakeRunPod, tmp_path: Path) -> None:
    (tmp_path / "id.pub").write_text("ssh-ed25519 AAAA me\n")
    machines = opened(window)
    rent = rent_window(window, machines)
    window.wait_until(lambda: "Store the API key" in rent.status.cget("text"), "the missing key")
    assert not runpod.asked, "nothing is asked of a provider before a key is stored"
    focused: list[object] = []
    with pytest.MonkeyPatch.context() as patch:

        def note_focus(dialog: SecretsDialog) -> None:
            focused.append(dialog.first_entry is dialog.entries["cloud.api_key"].tk_entry)
            store_key()
            dialog.close()

        patch.setattr(SecretsDialog, "ask", note_focus)
        rent.key_button.invoke()
    assert focused == [True], "a key that is pasted does not replace the token of Hugging Face"
    window.wait_until(lambda: len(rent.offers) == 3, "the cards")
    assert [o.label for o in rent.offers] == ["L4odd", "RTX 4090", "H100 SXM"]
    assert rent.rent_button.cget("state") == "disabled", "no card is chosen"
    rent.table.select([1])
    window.settle()
    assert all(part in rent.status.cget("text") for part in ("RTX 4090", "0.69 dollars an hour"))
    rent.form.set("key", str(tmp_path / "none"))
    rent.rent()
    assert "none.pub cannot be read" in rent.status.cget("text")
    rent.form.set("key", "")
    window.asked.answers = {"choose": "cancel"}
    rent.rent()
    assert not ssh_key_file().exists()
    rent.form.set("key", str(tmp_path / "id"))
    rent.rent()
    title, question = window.asked.asked("choose")[1][:2]
    assert title == "Rent 1 x RTX 4090?"
    assert "0.69 dollars an hour" in question
    assert "POST" not in [method for method, *_ in runpod.asked]
    window.asked.answers = {"choose": "rent"}
    rent.rent_button.invoke()
    window.wait_until(lambda: "is rented" in rent.status.cget("text"), "the machine")
    rent.close()
    assert machines.selected.get() == "pod"
    remote = RemotesFile().find("pod")
    assert (remote.host, remote.pod_after) == ("203.0.113.9", "stop")
    window.wait_until(lambda: "Rented: running, 0.69" in machines.rented.state.cget("text"), "its state")
    window.asked.answers = {"choose": "do"}
    for name, text in (("stop", "pod stops"), ("start", "pod has started"), ("delete", "pod is deleted")):
        machines.rented.buttons[name].invoke()
        window.wait_until(lambda: text in machines.findings.cget("text"), text)  # noqa: B023 - called at once
    assert "0.69 an hour from now on" in str(window.asked.asked("choose"))
    assert not runpod.pods
    assert not RemotesFile().read()
    assert not machines.rented.winfo_manager()
    machines.close()


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_rent_that_is_cancelled_while_its_address_arrives_is_undone(
    runpod: FakeRunPod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    (tmp_path / "id.pub").write_text("ssh-ed25519 AAAA me\n")
    store_key()
    task, read = _Task(), RunPod.read

    def read_and_cancel(self: RunPod, pod: str) -> Pod:
        found = read(self, pod)
        if found.host:
            task.stop.set()
            runpod.status = 0 if is_deleted else 503
        return found

    monkeypatch.setattr(RunPod, "read", read_and_cancel)
    settings = RentSettings(name="pod", card="NVIDIA L4", key=str(tmp_path / "id"))
    monkeypatch.setattr("ui.features.remote.renting._Waiting.wait", lambda self, _seconds: self.require_wanted())
    if is_deleted:
        assert _rent(settings, lambda text: None, task) == "pod is deleted again."
    else:
        with pytest.raises(DarkroomError, match=r"pod could not be deleted, and may cost\. RunPod"):
            _rent(settings, lambda text: None, task)
    assert bool(runpod.pods) == bool(RemotesFile().read()) == (not is_deleted)


def test_the_window_closes_once_a_rented_machine_is_in_the_list(
    window: Window, runpod: FakeRunPod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "id.pub").write_text("ssh-ed25519 AAAA me\n")
    store_key()
    is_asked, create = Event(), RunPod.create

    def create_late(self: RunPod, request: PodRequest) -> Pod:
        is_asked.set()
        return create(self, request)

    monkeypatch.setattr(RunPod, "create", create_late)
    model = window.app.context.models.of(Renting)
    model.rent(RentSettings(name="pod", card="NVIDIA L4", key=str(tmp_path / "id")))
    assert is_asked.wait(120)
    model.close()
    assert RemotesFile().read()
    window.wait_until(lambda: not model.is_working, "the machine")


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH's client is not installed.")
def test_who_has_no_key_gets_a_pair(window: Window, runpod: FakeRunPod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: ssh_key_file().parent / "nobody")
    store_key()
    machines = opened(window)
    rent = rent_window(window, machines)
    window.wait_until(lambda: rent.offers, "the cards")
    rent.table.select([1])
    window.settle()
    window.asked.answers = {"choose": "make"}
    rent.rent()
    assert ssh_key_file().stat().st_mode & 0o077 == 0
    public = ssh_key_file().with_suffix(".pub").read_text()
    window.asked.answers = {"choose": "rent"}
    rent.rent()
    window.wait_until(lambda: "is rented" in rent.status.cget("text"), "the machine")
    [request] = [content for method, _, content in runpod.asked if method == "POST"]
    assert request["env"]["PUBLIC_KEY"] == public.strip()
    rent.close()
    machines.close()


def test_cancelling_undoes_what_costs(
    window: Window, runpod: FakeRunPod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rented machine is deleted again, a started one stopped; also from a window that was opened meanwhile."""
    monkeypatch.setattr(renting, "_POLL_SECONDS", 60.0)  # the wait is ended by cancelling it
    (tmp_path / "id.pub").write_text("ssh-ed25519 AAAA me\n")
    store_key()
    model = window.app.context.models.of(Renting)
    machines = opened(window)
    model.rent(RentSettings(name="pod", card="NVIDIA L4", key=str(tmp_path / "id")))
    window.wait_until(lambda: "address" in machines.findings.cget("text"), "the wait")
    assert runpod.pods
    machines.close()
    machines = opened(window)
    machines.rented.buttons["cancel"].invoke()
    window.wait_until(lambda: "pod is deleted again" in machines.findings.cget("text"), "the end")
    assert not runpod.pods
    assert not RemotesFile().read()
    remote = Remote("pod", "", provider="runpod", pod="pod1")
    RemotesFile().add(remote)
    runpod.pods["pod1"], runpod.names["pod1"] = [{"status": "STARTING", "runtime": None}], "darkroom-pod"
    machines.machines.read()
    machines.show("pod")
    window.asked.answers = {"choose": "do"}
    machines.rented.buttons["start"].invoke()
    window.wait_until(lambda: "address" in machines.findings.cget("text"), "the wait")
    machines.rented.buttons["cancel"].invoke()
    window.wait_until(lambda: "pod is stopped again" in machines.findings.cget("text"), "the end")
    assert runpod.pods["pod1"][0]["status"] == "EXITED"
    machines.close()


@pytest.mark.usefixtures("runpod")
def test_a_machine_of_onetrainer_is_imported(window: Window, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    cloud = {"on_finish": "STOP", "delete_workspace": True}
    file.write_text(json.dumps({"cloud": cloud, "secrets": {"cloud": {"id": "ab12", "api_key": TOKEN}}}))
    RemotesFile().add(Remote("onetrainer", "host"))
    machines = opened(window)
    window.asked.answers = {"ask_file": file}
    machines.buttons["import"].invoke()
    assert machines.selected.get() == "onetrainer2"
    assert RemotesFile().find("onetrainer2").pod_after == "stop"
    assert load_secrets().secrets.cloud.api_key == TOKEN
    assert "delete_workspace" in machines.findings.cget("text")
    file.write_text("{}")
    machines.buttons["import"].invoke()
    assert "does not name the host" in machines.findings.cget("text")
    window.settle()
    machines.close()


def test_the_record_of_a_rented_machine_is_edited(window: Window) -> None:
    RemotesFile().add(Remote("box", "host"))
    RemotesFile().add(Remote("pod", "", provider="runpod", pod="ab12", pod_after="stop"))
    machines = opened(window)
    assert not machines.rented.winfo_manager()
    machines.show("pod")
    assert machines.rented.winfo_manager()
    window.wait_until(lambda: "no API key" in machines.rented.state.cget("text"), "the state")
    texts(machines, num_devices="2")
    machines.record.pod_after.set("delete")
    window.asked.answers = {"choose": "keep"}
    assert machines.save()
    assert "is deleted with all" in str(window.asked.asked("choose"))
    assert RemotesFile().find("pod") == Remote(
        "pod", "", num_devices=2, provider="runpod", pod="ab12", pod_after="delete"
    )
    window.asked.answers = {"choose": "cancel"}
    machines.buttons["remove"].invoke()
    assert "It stays rented and " in str(window.asked.asked("choose"))
    machines.close()


def test_a_machine_is_removed_and_the_next_run_trains_here(window: Window) -> None:
    RemotesFile().add(Remote("box", "host", price_per_hour=0.5))
    app = window.app
    app.machines.choose("box")
    machines = opened(window)
    assert [text.get() for text in machines.record.texts.values()][:2] == ["box", "host"]
    texts(machines, name="crate", command_after="poweroff")
    machines.record.fetches_backups.set(True)
    window.asked.answers = {"choose": "cancel"}
    assert not machines.save()
    assert "poweroff" in window.asked.asked("choose")[0][1]
    window.asked.answers = {"choose": "keep"}
    assert machines.save()
    crate = Remote("crate", "host", price_per_hour=0.5, fetches_backups=True, command_after="poweroff")
    assert RemotesFile().read() == (crate,)
    assert machines.save()
    assert len(window.asked.asked("choose")) == 2, "the command is the same"
    window.asked.answers = {"choose": "remove"}
    machines.buttons["remove"].invoke()
    assert not RemotesFile().read()
    assert not app.machines.chosen
    assert "--on" not in " ".join(arguments_of(RunRequest(app.form.config), Path("config.json")))
    machines.close()
