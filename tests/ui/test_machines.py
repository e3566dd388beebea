"""The window of machines, and the choice of the machine that the next run trains on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.ssh import SSHD, WHY_NOT, Server, ssh_server
from tests.ui.conftest import Window
from trainer.child.run import arguments_of
from trainer.launch import RunRequest
from trainer.remote.record import Remote, RemotesFile
from ui.features.remote.window import MachinesWindow
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
        machines._texts[name].set(value)


@pytest.mark.skipif(SSHD is None, reason=WHY_NOT)
def test_a_machine_is_added_checked_and_trains_the_next_run(
    ready: Window, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.remote.checking._TORCH", "print('2.0', 0)")  # its import takes seconds
    bar, app = ready.app.shell.bottom_bar, ready.app
    assert not bar.machine.winfo_manager()  # there is no choice
    machines, remote = opened(ready), server.remote
    machines.buttons["check"].invoke()
    assert "A name of a machine" in machines.findings.cget("text")
    texts(machines, name="box", host=remote.host, port=str(remote.port), key_file=remote.key_file)
    texts(machines, folder=remote.folder, python=remote.python, num_devices="two")
    machines.buttons["check"].invoke()
    assert "whole numbers" in machines.findings.cget("text")
    texts(machines, num_devices="1")
    ready.asked.answers = {"choose": "refuse", "confirm_start": True}
    machines.buttons["check"].invoke()
    ready.wait_until(lambda: "was not accepted" in machines.findings.cget("text"), "the refusal")
    assert "SHA256:" in ready.asked.asked("choose")[0][1]
    ready.asked.answers["choose"] = "accept"
    machines.buttons["check"].invoke()
    ready.wait_until(lambda: "GB free" in machines.findings.cget("text"), "the findings")
    assert RemotesFile().find("box") == remote
    machines.close()
    ready.settle()
    assert bar.machine.cget("text") == "This computer ▾"
    bar.make_machines_menu().invoke(1)
    ready.settle()
    assert bar.machine.cget("text") == "On box ▾"
    app.context.actions.run("start")
    ready.wait_until(lambda: app.context.session.request is not None, "the start")
    request = app.context.session.request
    assert request is not None
    assert request.on == "box"
    assert "--on=box" in arguments_of(request, Path("config.json"))


def test_a_rented_machine_is_started_and_stopped(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    switched = []
    monkeypatch.setattr("ui.features.remote.window.switch", lambda remote, *, on: switched.append((remote.pod, on)))
    RemotesFile().add(Remote("box", "host"))
    RemotesFile().add(Remote("pod", "", provider="runpod", pod="ab12", pod_after="stop"))
    machines = opened(window)
    assert not machines.buttons["start"].winfo_manager()
    machines.show("pod")
    for name, text in (("start", "pod has started"), ("stop", "pod stops")):
        machines.buttons[name].invoke()
        window.wait_until(lambda: text in machines.findings.cget("text"), "the end")  # noqa: B023 - called at once
    assert switched == [("ab12", True), ("ab12", False)]
    texts(machines, num_devices="2")
    assert machines.save()
    assert RemotesFile().find("pod") == Remote(
        "pod", "", num_devices=2, provider="runpod", pod="ab12", pod_after="stop"
    )
    machines.close()


def test_a_machine_is_removed_and_the_next_run_trains_here(window: Window) -> None:
    RemotesFile().add(Remote("box", "host", price_per_hour=0.5))
    app = window.app
    app.machines.choose("box")
    machines = opened(window)
    assert [text.get() for text in machines._texts.values()][:2] == ["box", "host"]
    texts(machines, name="crate", command_after="poweroff")
    machines.backups.set(True)
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
