"""TensorBoard's server without TensorBoard: a small program answers in its place."""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from modules.config.schema import Config
from modules.system.errors import DarkroomError
from tests.builders.ports import kept_port
from tests.ui.recorder import Recorder
from ui.features.tensorboard import TensorBoardControl, TensorBoardServer, command_of, free_port, may_expose
from ui.forms.preferences import Preferences, UiSettings
from ui.loop.background import Background
from ui.loop.interaction import Failure

_ANSWERS = (  # it may listen at a port that is kept for it, as TensorBoard may
    "import socket,sys; s=socket.create_server(('127.0.0.1',int(sys.argv[1]))); s.accept(); input()"
)


@pytest.fixture
def run_instead(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Let a program of a test run in place of TensorBoard, at a port that no other program is given meanwhile."""
    with kept_port() as kept:
        monkeypatch.setattr("ui.features.tensorboard.free_port", lambda _wanted, host: kept)
        yield lambda program: monkeypatch.setattr(
            "ui.features.tensorboard.command_of",
            lambda _folder, _host, port: [sys.executable, "-c", program, str(port)],
        )


def test_the_server_answers_is_used_again_and_ends(run_instead: Callable[[str], None], tmp_path: Path) -> None:
    run_instead(_ANSWERS)
    server = TensorBoardServer()
    address = server.start(tmp_path)
    assert address.startswith("http://127.0.0.1:")
    assert server.start(tmp_path) == address
    process = server._process
    assert process is not None
    server.close()
    assert process.poll() is not None
    assert not server.is_running


def test_a_server_with_much_to_say_is_not_stopped_by_it(run_instead: Callable[[str], None], tmp_path: Path) -> None:
    """Once its warnings filled the pipe, after hours, it did not answer any more."""
    run_instead(f"import sys; sys.stderr.write('warning ' * 50_000); {_ANSWERS}")
    server = TensorBoardServer()
    server.start(tmp_path)
    assert server.is_running
    server.close()


def test_it_listens_on_this_machine_only(tmp_path: Path) -> None:
    command = command_of(tmp_path, "127.0.0.1", 6006)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wanted = taken.getsockname()[1]
        assert free_port(wanted) not in (0, wanted)


def test_a_missing_or_failing_tensorboard_is_said(
    run_instead: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_instead("raise SystemExit('no')")
    with pytest.raises(DarkroomError, match="ended while it started: no"):
        TensorBoardServer().start(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(DarkroomError) as caught:
        TensorBoardServer().start(tmp_path)
    assert caught.value.message == "TensorBoard is not installed."
    assert "python -m trainer install tensorboard" in caught.value.advice
    assert caught.value.remedy == "packages"


class _Server(TensorBoardServer):
    def __init__(self, error: DarkroomError | None = None) -> None:
        super().__init__()
        self.started: list[tuple[str, int, bool]] = []
        self.error = error

    def start(self, folder: Path, *, port: int = 0, is_exposed: bool = False) -> str:
        if self.error is not None:
            raise self.error
        self.started.append((folder.name, port, is_exposed))
        return "http://127.0.0.1:1/"


class _AtOnce(Background):
    def run(self, work, done, failed=None):  # type: ignore[no-untyped-def]
        try:
            result = work()
        except Exception as error:  # noqa: BLE001
            assert failed is not None
            failed(error)
        else:
            done(result)


def test_the_button_opens_the_browser_and_the_setting_keeps_it_running() -> None:
    server, said, opened, failures = _Server(), list[str](), list[str](), list[Failure]()
    general = {"tensorboard_port": 7000, "tensorboard_expose": True}
    config = [Config.model_validate({"general": general})]
    control = TensorBoardControl(
        _AtOnce(),
        lambda: config[0],
        said.append,
        lambda failure: failures.append(failure) or bool(failure.offer),  # type: ignore[func-returns-value]
        install=lambda: said.append("installed"),
        may_expose=lambda _folder, _asks: True,
        open_address=opened.append,
        server=server,
    )
    control.follow_setting()
    assert server.started == []
    control.open()
    assert opened == ["http://127.0.0.1:1/"]
    assert server.started == [("runs", 0, False)]  # exposed only where it is always on
    config[0] = Config.model_validate({"general": {**general, "tensorboard_always_on": True}})
    control.follow_setting()
    assert server.started[-1] == ("runs", 7000, True)
    server.error = DarkroomError("TensorBoard is not installed.", advice="Install it.")
    control.open()
    assert [(f.message, f.advice, f.offer) for f in failures] == [("TensorBoard is not installed.", "Install it.", "")]
    server.error = DarkroomError("TensorBoard is not installed.", advice="Install it.", remedy="packages")
    control.open()
    assert (failures[-1].offer, said[-1]) == ("Install TensorBoard…", "installed")
    control.close()


@pytest.mark.parametrize("answer", ["expose", "local", None])
def test_a_config_alone_exposes_nothing(tmp_path: Path, answer: str | None) -> None:
    """A config may come from anybody: it is loaded, and the user is asked where TensorBoard is opened."""
    server, asked, preferences = _Server(), Recorder(), Preferences(UiSettings())
    general = {"tensorboard_always_on": True, "tensorboard_expose": True, "tensorboard_port": 7000}
    config = [Config.model_validate({"general": {**general, "workspace_dir": str(tmp_path)}})]
    control = TensorBoardControl(
        _AtOnce(),
        lambda: config[0],
        lambda _text: None,
        lambda _failure: None,
        install=lambda: None,
        may_expose=partial(may_expose, preferences, asked),
        open_address=lambda _address: None,
        server=server,
    )
    control.follow_setting()
    assert (server.started, asked.calls) == ([("runs", 7000, False)], [])
    asked.answers["choose"] = answer
    for _ in range(2):
        control.open()
    assert [is_exposed for _, _, is_exposed in server.started[1:]] == [answer == "expose"] * 2
    assert len(asked.asked("choose")) == (1 if answer == "expose" else 2)
    assert preferences.now.exposed_folders == ((str(tmp_path / "runs"),) if answer == "expose" else ())
    config[0] = Config.model_validate({"general": {**general, "workspace_dir": str(tmp_path / "other")}})
    control.follow_setting()
    assert server.started[-1] == ("runs", 7000, False)
