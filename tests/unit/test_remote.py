"""Machines that runs are trained on over SSH: records, connections to a real server, files in both directions."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from modules.config.codec import decode
from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT, known_hosts_file, queue_file
from modules.system.secrets import CloudSecrets
from modules.system.secrets_file import load_secrets
from tests.builders.ssh import SSHD, WHY_NOT, Server, accept_key, ssh_server
from tests.unit.test_run_records import started
from trainer.__main__ import main
from trainer.commands import BackupNow, Command, Resume, Stop
from trainer.event_lines import from_line, to_line
from trainer.events import ModelSaved, RunFailed, RunFinished, RunStarted
from trainer.remote import agent
from trainer.remote.connection import Connection, ConnectionLostError, printed_by
from trainer.remote.fetching import Answers, RunFiles, checked_name
from trainer.remote.follower import Follower, end_machine
from trainer.remote.host_keys import fingerprints, is_known, offered_keys
from trainer.remote.inputs import config_there, inputs_of, program_tree
from trainer.remote.line import Line
from trainer.remote.onetrainer import NEEDLESS, TAKEN, ImportedMachine, import_machine
from trainer.remote.record import Remote, RemotesFile, problem_of
from trainer.remote.starting import prepare
from trainer.remote.trees import SentFile, Tree, send_trees
from trainer.run_folder.choices import (
    SKIP,
    TIE,
    Answer,
    all_requests,
    answer,
    answer_of,
    ask,
    open_requests,
    take_back,
    withdraw,
)
from trainer.run_folder.elsewhere import Elsewhere, note_elsewhere
from trainer.run_queue.file import QueueFile

needs_server = pytest.mark.skipif(SSHD is None, reason=WHY_NOT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("ssh")
    with ssh_server(folder, folder / "machine", {"PYTHONDONTWRITEBYTECODE": "1"}) as running:
        yield running


def tree_of(folder: Path, **contents: bytes) -> Tree:
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    files = [SentFile(name, folder / name, len(content), 1) for name, content in contents.items()]
    return Tree(tuple(files))


class Nearby:
    """A connection to an agent of this process."""

    def __init__(self, folder: Path) -> None:
        self._agent = agent.Agent(str(folder))

    def call(self, request: str, content: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
        answer: tuple[Any, bytes] = getattr(self._agent, request)(content, **arguments)
        return answer


@pytest.mark.parametrize("is_free", [True, False])
def test_nothing_but_the_result_is_put_next_to_it(tmp_path: Path, is_free: bool) -> None:
    there, here, run_dir = (tmp_path / name for name in ("there/result", "models", "run"))
    for folder in (there / "zog_embeddings", here, run_dir):
        folder.mkdir(parents=True)
    for name in ("zog.safetensors", "zog.yaml", "other.safetensors", "zog_embeddings/w.safetensors"):
        (there / name).write_bytes(b"theirs")
    (here / "other.safetensors").write_bytes(b"mine")
    if not is_free:
        (here / "zog.safetensors").write_bytes(b"mine")
    files = RunFiles(cast("Connection", Nearby(tmp_path / "there")), "", run_dir, str)
    place = files.fetch_result(str(there), here / "zog.safetensors")
    assert place == (here if is_free else run_dir / "save") / "zog.safetensors"
    found = {str(f.relative_to(place.parent)): f.read_bytes() for f in place.parent.rglob("*") if f.is_file()}
    names = {"zog.safetensors", "zog.yaml", "zog_embeddings/w.safetensors"}
    assert {name for name, content in found.items() if content == b"theirs"} == names
    assert (here / "other.safetensors").read_bytes() == b"mine"
    assert not (run_dir / ".result").exists()


@needs_server
def test_a_host_key_is_accepted_once_and_a_changed_one_is_refused(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = json.dumps({"version": "2.0", "devices": 0})
    monkeypatch.setattr("trainer.remote.checking._TORCH", f"print({found!r})")  # its import takes seconds
    remote = server.remote
    with pytest.raises(DarkroomError, match=r"The host key of box is not known\."):
        Connection(remote)
    RemotesFile().add(remote)
    [shown] = fingerprints(offered_keys(remote))
    assert main(["remote", "check", "box", "--accept", "SHA256:another"]) == 1
    assert shown in capsys.readouterr().out
    assert not is_known(remote)
    main(["remote", "check", "box", "--accept", shown.split()[1]])
    assert is_known(remote)
    listed = capsys.readouterr().out
    assert "127.0.0.1 answers." in listed
    assert "GB free in" in listed
    assert "PyTorch 2.0, which finds 0 CUDA devices." in listed
    server.new_host_key()
    with pytest.raises(DarkroomError, match="The host key of box has changed") as refused:
        Connection(remote)
    assert "remote check box --new-key" in refused.value.advice
    before = known_hosts_file().read_text()
    [shown] = fingerprints(offered_keys(remote))
    main(["remote", "check", "box", "--new-key", "--accept", shown.split()[1]])
    assert len(known_hosts_file().read_text().splitlines()) == len(before.splitlines()) == 1


@needs_server
@pytest.mark.full
def test_each_reason_for_no_connection_is_a_sentence(server: Server) -> None:
    accept_key(server)
    remote = server.remote
    wrong_key = replace(remote, key_file=str(server.folder / "host"))
    with pytest.raises(DarkroomError, match="box does not accept the key"):
        Connection(wrong_key)
    with pytest.raises(DarkroomError, match="box has no Python at /nowhere/python"):
        Connection(replace(remote, python="/nowhere/python"))
    with pytest.raises(ConnectionLostError, match="refused"):
        Connection(replace(remote, port=1))


@needs_server
def test_files_are_sent_once_and_from_where_a_lost_connection_ended(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.remote.trees._PART_BYTES", 1000)
    accept_key(server)
    large = bytes(range(256)) * 40
    first = tree_of(tmp_path / "one", large=large, small=b"caption")
    sent: list[float] = []

    def send(connection: Connection, tree: Tree, *, cut_after_mb: float = 1) -> str:
        def progress(event: object) -> None:
            sent.append(event.done_mb)  # type: ignore[attr-defined]
            if sent[-1] >= cut_after_mb:
                server.cut()

        [place] = send_trees(connection, [tree], cache_dir=None, progress=progress)
        return place

    with Connection(server.remote) as connection, pytest.raises(ConnectionLostError):
        send(connection, first, cut_after_mb=0.005)
    sent.clear()
    with Connection(server.remote) as connection:
        place = send(connection, first)
        assert sent[0] >= 0.005  # the earlier parts were there
        assert Path(place, "large").read_bytes() == large
        sent.clear()
        other = send(connection, tree_of(tmp_path / "two", renamed=large, small=b"another"))
        assert sent == [pytest.approx(7e-6)]  # the caption alone
        assert {p.name for p in Path(place).iterdir()} == {"large", "small"}  # which a run may be reading
        assert Path(other, "small").read_bytes() == b"another"
        facts = connection.call("files", folder=place, without=[])[0]
        files = RunFiles(connection, place, tmp_path / "fetched", lambda text: text)
        files.sync()
        assert (tmp_path / "fetched" / "large").read_bytes() == large
        assert [name for name, *_ in facts] == ["large", "small"]
        (Path(place) / ".step-2.writing").mkdir()
        (Path(place) / ".step-2.writing" / "half").write_bytes(b"x")
        (Path(place) / "renamed").write_bytes(b"x")

        class Late(Connection):
            """A connection to a machine that renames a file after it was listed."""

            def call(self, request: str, content: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
                if request == "read":
                    Path(place, "renamed").unlink()
                return super().call(request, content, **arguments)

        with Late(server.remote) as late:
            RunFiles(late, place, tmp_path / "fetched", lambda text: text).sync()
        assert sorted(p.name for p in (tmp_path / "fetched").iterdir()) == ["large", "small"]
        shutil.rmtree(place)
        with pytest.raises(DarkroomError, match=r"box reports: .*No such file"):
            connection.call("read", path=f"{place}/large", offset=0, size=1)


def test_the_program_is_sent_by_its_content() -> None:
    """So another commit is another program, and a run that trains there keeps its own."""
    names = {file.name for file in program_tree().files}
    assert {"trainer/__main__.py", "launcher/__main__.py", "modules/config/schema.py", "pyproject.toml"} <= names
    assert not any(name.startswith(("ui/", "tests/")) or name.endswith(".pyc") for name in names)


def test_a_config_gets_the_paths_of_the_machine(tmp_path: Path) -> None:
    images, model = tmp_path / "images", tmp_path / "model.safetensors"
    images.mkdir()
    for file in (images / "a.png", images / "a.txt", images / "notes.docx", images / ".hidden.png", model):
        file.write_bytes(b"x")
    config = decode(
        {
            "darkroom_version": 7,
            "model": {"base_model": str(model)},
            "concepts": [{"path": str(images)}, {"path": "/nowhere", "enabled": False}, {"path": str(images)}],
            "output": {"destination": "models/lora.safetensors"},
        }
    ).config
    inputs = inputs_of(config)
    assert [i.settings for i in inputs] == [("model.base_model",), ("concepts.0.path", "concepts.2.path")]
    assert [f.name for f in inputs[1].tree.files] == ["images/a.png", "images/a.txt"]
    remote = Remote("box", "host", num_devices=2, hub_cache_dir="/hub")
    there = config_there(config, inputs, ["/r/t1", "/r/t2"], remote=remote, folder="/r", job="/r/j")
    assert there.model.base_model == "/r/t1/model.safetensors"
    assert [c.path for c in there.concepts] == ["/r/t2/images", "/nowhere", "/r/t2/images"]
    assert (there.general.workspace_dir, there.general.cache_dir) == ("/r/j/workspace", "/r/cache")
    assert there.output.destination == "/r/j/result/lora.safetensors"
    assert there.model.hub_cache_dir == "/hub"
    assert there.multi_gpu.enabled
    assert there.multi_gpu.device_indexes == "0,1"


def test_texts_of_the_machine_get_the_paths_of_here(tmp_path: Path) -> None:
    elsewhere = Elsewhere("box", "j", "/r/j", "/home/Ü/lora.safetensors", {"/r/t2/images": "/data/Ü"})
    line = json.dumps({"a": "/r/t2/images/a.png", "b": "/r/j/result/lora.safetensors", "c": "/r/j/workspace/runs/1/x"})
    here = json.loads(elsewhere.with_local_paths(line, "/r/j/workspace/runs/1", tmp_path))
    assert here == {"a": "/data/Ü/a.png", "b": "/home/Ü/lora.safetensors", "c": f"{tmp_path}/x"}


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a\\b", "c:x", "./remote.json", "a//b", "a\0b"])
def test_no_file_of_the_machine_is_written_outside_of_its_folder(name: str) -> None:
    with pytest.raises(DarkroomError, match="not valid"):
        checked_name(name)


@pytest.mark.parametrize(
    "change",
    [{"name": "a b"}, {"host": "-oProxyCommand=x"}, {"host": ""}, {"user": "-l"}, {"port": 70000}, {"folder": " "}],
)
def test_a_record_that_is_not_valid_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    file = RemotesFile(tmp_path / "remotes.json")
    remote = Remote("box", "host")
    assert not problem_of(remote)
    with pytest.raises(DarkroomError):
        file.add(replace(remote, **change))  # type: ignore[arg-type]


def test_records_are_kept_and_a_damaged_file_is_not_overwritten(tmp_path: Path) -> None:
    file = RemotesFile(tmp_path / "remotes.json")
    file.add(Remote("box", "host", 22, "me", "~/.ssh/id", "~/d", "python3", 2, 0.5))
    file.add(Remote("a", "other"))
    assert [remote.name for remote in file.read()] == ["a", "box"]
    assert file.find("box").num_devices == 2
    file.remove("a")
    with pytest.raises(DarkroomError, match="There is no machine 'a'"):
        file.find("a")
    file.path.write_text("{")
    with pytest.raises(DarkroomError, match="cannot be read"):
        file.add(Remote("c", "host"))
    assert file.path.read_text() == "{"


def test_the_cloud_settings_of_onetrainer_become_a_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    cloud = {"enabled": True, "remote_dir": "/workspace/", "file_sync": "NATIVE_SCP", "on_finish": "DELETE"}
    file.write_text(json.dumps({"__version": 9, "cloud": cloud}))
    assert main(["remote", "import", "pod", str(file)]) == 2
    assert "does not name the host" in capsys.readouterr().err
    access = {"host": "1.2.3.4", "port": "2222", "user": "root", "key_file": "~/.ssh/id"}
    secrets = {"cloud": {**access, "password": "secret2"}}
    file.write_text(json.dumps({"__version": 9, "cloud": cloud, "secrets": secrets}))
    assert main(["remote", "import", "pod", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "Without a counterpart here: on_finish: DELETE needs a command" in printed
    assert "Without a counterpart here: password: Passwords are not used" in printed
    assert "file_sync" not in printed
    assert RemotesFile().find("pod") == Remote("pod", "1.2.3.4", 2222, "root", "~/.ssh/id", "/workspace/darkroom")
    assert not load_secrets().secrets.cloud.api_key
    file.write_text(json.dumps({"cloud": cloud, "secrets": {"cloud": {"id": "ab12", "api_key": "secret1"}}}))
    assert main(["remote", "import", "rented", str(file)]) == 0
    rented = RemotesFile().find("rented")
    assert (rented.provider, rented.pod, rented.pod_after, rented.host) == ("runpod", "ab12", "delete", "")
    printed = capsys.readouterr().out
    assert "rented is added: pod ab12, /workspace/darkroom." in printed
    assert "Its API key is stored; config.json still contains it." in printed
    assert load_secrets().secrets.cloud.api_key == "secret1"
    assert not any(secret in RemotesFile().path.read_text() + printed for secret in ("secret1", "secret2"))
    (tmp_path / "secrets.json").write_text(json.dumps(secrets))
    main(["remote", "import", "other", str(tmp_path / "secrets.json")])
    assert RemotesFile().find("other").host == "1.2.3.4"


def cloud_of_onetrainer() -> dict[str, object]:
    """All of OneTrainer's cloud settings with their defaults, of a file of its version 11."""
    config = json.loads((PROGRAM_ROOT / "tests" / "unit" / "fixtures" / "onetrainer_11.json").read_text())
    return dict(config["cloud"])


def test_each_cloud_setting_becomes_something(tmp_path: Path) -> None:
    file, defaults = tmp_path / "config.json", cloud_of_onetrainer()
    stored = CloudSecrets(id="ab12")

    def imported(**changes: object) -> ImportedMachine:
        file.write_text(json.dumps({"__version": 11, "cloud": {**defaults, **changes}}))
        return import_machine("pod", file, stored)

    plain = imported()
    assert plain.notes == ()
    assert plain.remote == Remote(
        "pod", "", folder="/workspace/darkroom", provider="runpod", pod="ab12",
        hub_cache_dir="/workspace/huggingface_cache",
    )  # fmt: skip
    assert imported(download_backups=True).remote.fetches_backups
    assert imported(huggingface_cache_dir="/hub").remote.hub_cache_dir == "/hub"
    both = {"on_finish": "STOP", "on_detached_finish": "DELETE"}
    assert imported(**both).remote.pod_after == "stop"
    assert imported(**both, detach_trainer=True).remote.pod_after == "delete"
    others = {
        "min_download": 100, "download_samples": False, "download_output_model": False, "download_saves": False,
        "delete_workspace": True, "on_error": "STOP", "on_detached_error": "DELETE",
    }  # fmt: skip
    assert [note.partition(":")[0] for note in imported(**others).notes] == list(others)
    assert imported(brand_new=7).notes == ("brand_new: It is not known here.",)
    ends = {"on_finish", "on_detached_finish"}
    assert defaults.keys() == (TAKEN - {"host", "port", "user", "key_file", "id", "api_key"}) | NEEDLESS | ends | (
        others.keys()
    )


def test_machines_that_several_programs_add_at_once_are_all_kept(tmp_path: Path) -> None:
    """One of them may be rented, and would cost without being in the list."""
    names = [f"box{number}" for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: RemotesFile(tmp_path / "remotes.json").add(Remote(name, host="h")), names))
    assert {remote.name for remote in RemotesFile(tmp_path / "remotes.json").read()} == set(names)


def test_an_imported_machine_that_will_be_deleted_is_announced(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"cloud": {**cloud_of_onetrainer(), "on_finish": "DELETE"}}))
    found = import_machine("pod", file, CloudSecrets(id="ab12"))
    assert found.remote.pod_after == "delete"
    assert [note for note in found.notes if "is deleted, with all that is on it" in note]


def test_a_machine_that_onetrainer_would_create_is_rented(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    create = {"create": True, "gpu_type": "NVIDIA L4", "volume_size": 80, "on_finish": "DELETE"}
    file.write_text(json.dumps({"cloud": {**cloud_of_onetrainer(), **create}}))
    with pytest.raises(DarkroomError) as refused:
        import_machine("pod", file, CloudSecrets())
    assert refused.value.advice.endswith('remote rent pod --key KEY_FILE --card "NVIDIA L4" --volume 80 --after delete')
    file.write_text(json.dumps({"cloud": {**cloud_of_onetrainer(), **create, "gpu_type": 'x" & calc "'}}))
    with pytest.raises(DarkroomError) as refused:
        import_machine("pod", file, CloudSecrets())
    assert "--card CARD --volume 80" in refused.value.advice


def test_cloud_settings_of_our_early_configs_are_read_by_onetrainers_names(tmp_path: Path) -> None:
    early = {"kind": "runpod", "on_finish": "stop", "hub_cache_dir": "/hub", "min_download_mbps": 5.0}
    (tmp_path / "config.json").write_text(json.dumps({"darkroom_version": 9, "unknown": {"cloud": early}}))
    found = import_machine("pod", tmp_path / "config.json", CloudSecrets(id="ab12"))
    assert (found.remote.pod_after, found.remote.hub_cache_dir) == ("stop", "/hub")
    assert [note.partition(":")[0] for note in found.notes] == ["min_download"]


class Asked(Connection):
    """A connection without a machine, which has these jobs, and whose commands end with a code."""

    def __init__(
        self, jobs: list[str], code: int | None = 0, *, command: str = "poweroff", printed: bytes = b"sudo: not found\n"
    ) -> None:
        self.remote, self.facts = Remote("box", "host", command_after=command), {"folder": "/r"}
        self.jobs, self.code, self.commands, self.printed = jobs, code, list[list[str]](), printed

    def call(self, request: str, content: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
        if request == "running":
            return self.jobs, b""
        self.commands.append(arguments["arguments"])
        if self.code is None:
            raise ConnectionLostError("it was switched off")
        return self.code, self.printed


FINISHED = RunFinished("finished", 9, "Finished.")


def test_a_machine_is_ended_once_nothing_else_trains_or_waits() -> None:
    def after(ending: RunFinished | RunFailed, asked: Asked) -> str | None:
        said = end_machine(asked, "j", ending)
        return said.message if said is not None else None

    for asked, warning in ((Asked(["j"]), None), (Asked([], None), None), (Asked([], 1), "sudo: not found")):
        said = after(FINISHED, asked)
        assert said == (warning and f"The command after a run failed on box: {warning}.")
        assert asked.commands == [["sh", "-c", "poweroff"]]
    asked = Asked(["j"])
    for ending in (RunFailed("No."), RunFinished("stopped", 3, "Stopped.")):
        assert "backups of this run are on it" in (after(ending, asked) or "")
    assert after(FINISHED, Asked([], command="")) is None
    RemotesFile().add(Remote("box", "host", command_after="true"))  # it was changed while the run trained
    changed = Asked([])
    assert after(FINISHED, changed) is None
    assert changed.commands == [["sh", "-c", "true"]]
    busy = Asked(["j", "other"])
    assert after(FINISHED, busy) is None
    QueueFile(queue_file()).change(lambda queue: queue.add("next", Config(), machine="box"))
    assert after(FINISHED, asked) is None
    assert not asked.commands + busy.commands


@pytest.mark.parametrize(
    ("name", "words"), [("adamw_8bit", ["install", "bitsandbytes"]), ("adamw", ["train", "--help"])]
)
def test_packages_that_a_choice_needs_are_installed_there(
    name: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.remote.starting.send_trees", lambda *args, **kwargs: ["/r/trees/program"])
    asked = Asked([])
    asked.facts |= {"version": [3, 12], "python": "/usr/bin/python3"}
    config = decode({"training": {"optimizer": {"name": name}}}).config
    prepare(asked, config, emit=lambda event: None, check=lambda: None)
    assert asked.commands[-1][-len(words) - 2 :] == ["-m", "launcher", *words]


def test_a_run_that_has_ended_is_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[str] = []
    machine = SimpleNamespace(call=lambda request, *_body, **_names: (sent.append(request) or ["other"], b""))
    monkeypatch.setattr("trainer.cli.remote._connect", lambda remote: nullcontext(machine))
    RemotesFile().add(Remote("box", "host"))
    note_elsewhere(tmp_path, Elsewhere("box", "job", "/r/job", str(tmp_path / "zog.safetensors")))
    assert main(["remote", "stop", str(tmp_path)]) == 2
    assert "The run does not train on box any more." in capsys.readouterr().err
    assert sent == ["running"]


def test_warnings_of_a_program_there_are_not_its_answer() -> None:
    asked = Asked([], printed=b'UserWarning: CUDA\n{"version": "2.13.0", "devices": 1}\n[W1129] destroyed\n')
    asked.facts |= {"python": "/usr/bin/python3"}
    assert printed_by(asked, "print()") == {"version": "2.13.0", "devices": 1}
    assert asked.commands == [["/usr/bin/python3", "-s", "-c", "print()"]]
    assert printed_by(Asked([]), "print()", python="/opt/python") is None
    of_others = Asked([], printed=b'{"version": "2.13.0", "devices": 1}\n{"event": "exit"}\n')
    of_others.facts |= {"python": "/usr/bin/python3"}
    assert printed_by(of_others, "print()", names={"version", "devices"}) == {"version": "2.13.0", "devices": 1}


def test_files_that_are_written_here_alone_are_not_fetched(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    for name in ("remote.json", "REMOTE.json", "launch.json.", "commands.jsonl/x", "log.txt"):
        (there / name).parent.mkdir(exist_ok=True)
        (there / name).write_bytes(b"theirs")
    nearby = cast("Connection", Nearby(tmp_path / "machine"))
    RunFiles(nearby, str(there), tmp_path / "run", str).sync()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["log.txt"]


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("/r/job/result/zog.safetensors", "models/zog.safetensors"),
        ("/r/run/save/zog-20.safetensors", "run/save/zog-20.safetensors"),
        ("/r/job/result/other.safetensors", "run/save/other.safetensors"),
        ("/home/ann/.bashrc", "run/save/.bashrc"),
        ("/r/run/../../ann/.bashrc", "run/save/.bashrc"),
    ],
)
def test_the_machine_names_no_place_of_a_model_outside_of_the_run(there: str, here: str, tmp_path: Path) -> None:
    """*Use step* writes to the place of the result that the log names."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    note_elsewhere(run_dir, Elsewhere("box", "job", "/r/job", f"{tmp_path}/x/../models/zog.safetensors"))
    follower = Follower(run_dir, Line(lambda event: None))
    follower._run_there = "/r/run"
    line = to_line(ModelSaved(20, there, "kohya", is_final=True), time="2026-03-04T12:00:00+00:00")
    event = from_line(follower._local_line(line.encode()))
    assert isinstance(event, ModelSaved)
    assert Path(os.path.normpath(event.path)) == tmp_path / here
    begun = from_line(follower._local_line(to_line(started(Path("/home/ann"))).encode()))
    assert isinstance(begun, RunStarted)
    assert begun.run_dir == str(run_dir)


def test_an_answer_of_any_size_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = object.__new__(Connection)
    monkeypatch.setattr(connection, "_write", lambda _content: None, raising=False)
    for size in (-1, 1 << 40, "9"):
        answer = json.dumps({"result": None, "body": size}).encode() + b"\n"
        monkeypatch.setattr(connection, "_read_line", lambda answer=answer: answer, raising=False)
        with pytest.raises(ConnectionLostError, match="did not answer as expected"):
            connection.call("cards")


def test_the_agent_needs_nothing_of_ours() -> None:
    source = Path(agent.__file__).read_text()
    imported = {line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imported <= sys.stdlib_module_names


def test_a_run_that_is_resumed_gets_no_command_of_the_process_that_was_killed(tmp_path: Path) -> None:
    """A run that was killed while it was paused was paused again at once."""
    nearby = Nearby(tmp_path / "machine")
    job = nearby.call("hello")[0]["folder"] + "/jobs/job"
    Path(job).mkdir()
    start = {"job": "job", "arguments": ["true"], "cwd": job, "environment": {}}
    nearby.call("start", **start, again=False)
    nearby.call("send", b'{"command": "Pause"}\n', job="job")
    while nearby.call("running")[0]:
        pass
    nearby.call("start", **start, again=True)
    assert not (Path(job) / agent.INBOX).exists()


def test_answers_go_to_the_machine_and_withdrawn_requests_leave(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for run_dir in (there, here):
        for name in ("step-1", "step-2"):
            ask(run_dir, name, "a zog", [b"one", b"two"])
    nearby = cast(Connection, Nearby(tmp_path / "machine"))
    answers, requests = Answers(here), open_requests(here)
    answers.pass_on(nearby, str(there))
    assert len(open_requests(there)) == 2
    answer(requests[0], Answer("chosen", 1, 0))
    answer(requests[1], TIE)
    answers.pass_on(nearby, str(there))
    assert [answer_of(r) for r in all_requests(there)] == [Answer("chosen", 1, 0), TIE]
    assert take_back(requests[0])
    files = RunFiles(nearby, str(there), here, lambda text: text)
    files.sync()  # an answer there is not fetched
    answers.pass_on(nearby, str(there))
    assert [answer_of(r) for r in all_requests(there)] == [None, TIE]
    answer(requests[0], SKIP)
    answers.pass_on(nearby, str(there))
    assert [answer_of(r) for r in all_requests(there)] == [SKIP, TIE]
    assert take_back(requests[0])  # while nobody follows the run
    Answers(here).pass_on(nearby, str(there))
    assert [answer_of(r) for r in all_requests(there)] == [None, TIE]
    late = all_requests(there)[1]
    withdraw(late)
    late.folder.mkdir()
    (late.folder / "answer.json").write_text("{}")  # it came after that
    files.sync()
    assert [r.name for r in all_requests(here)] == ["step-1"]


def test_a_command_whose_connection_is_lost_is_sent_over_the_next_one() -> None:
    """Stop was taken and lost with the connection: the window showed "Stopping" over a run that trained on."""
    line, sent = Line(lambda event: None), list[Command]()
    for command in (BackupNow(), Stop()):
        line.commands.put(command)

    def lose_second(command: Command) -> None:
        if sent:
            raise ConnectionLostError("it was cut")
        sent.append(command)

    with pytest.raises(ConnectionLostError):
        line.pass_on(lose_second)
    line.commands.put(Resume())
    line.pass_on(sent.append)
    line.pass_on(sent.append)
    assert sent == [BackupNow(), Stop(), Resume()]
