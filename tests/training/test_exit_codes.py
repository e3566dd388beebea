"""The exit codes of all verbs: 2 for what the user has to change, 1 for what the machine refused."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from modules.config.codec import save_file
from tests.builders.configs import small_config
from tests.builders.full_disk import FullDisk
from tests.builders.runs import run
from tests.training.test_lora_tools import write_lora
from trainer.__main__ import VERBS, main
from trainer.cli import remote
from trainer.events import RunFailed, RunFinished
from trainer.jobs.registry import JOBS
from trainer.remote.record import Remote

pytestmark = pytest.mark.usefixtures("one_thread")

# A command of each verb that writes to {out}.
WRITERS: Mapping[str, str] = {
    "train": "{config} --set output.destination={out}/lora.safetensors",
    "resume": "{run} --set training.epochs=2 --set output.destination={out}/lora.safetensors",
    "fork": "{run} --set training.epochs=2 --set output.destination={out}/lora.safetensors",
    "cache": "{config} --set general.cache_dir={out}",
    "queue": "add {config}",
    "remote": "add box --host 203.0.113.7",
    "secrets": "set huggingface_token",
    "check": "{config} --save {out}/config.json",
    "doctor": "{config} --html {out}/page.html",
    "sample": "{config} --prompt disc --width-px 64 --height-px 64 --steps 1 --out {out}",
    "preview": "{config} --out {out}/sheet.png",
    "probe": "{config} --what rate --steps 12 --out {out}",
    "self-test": "{config} --steps 5 --out {out}",
    "convert": "{lora} {out}/lora.safetensors",
    "export": "{run} --out {out}/lora.safetensors",
    "lora-merge": "{model} {out}/model {lora}",
    "lora-combine": "{out}/lora.safetensors {lora} {lora}",
    "lora-resize": "{lora} {out}/lora.safetensors --rank 1",
    "lora-extract": "{model} {other} {out}/lora.safetensors --rank 1",
    "lora-blocks": "{lora} {out}/lora.safetensors down=0.5",
    "schema": "--out {out}/schema.json",
    "mask": "{images} --model colour --masks-folder {out}",
    "bundle": "--out {out}/bundle.zip",
}
# These write next to what they read, into the environment, or nothing.
WITHOUT_OUTPUT = {"report", "web", "checkpoints", "inspect", "models", "diff", "caption", "install"}


def test_every_verb_is_held_to_the_exit_codes() -> None:
    assert {*WRITERS, *WITHOUT_OUTPUT} == set(VERBS)


@pytest.fixture(scope="module")
def places(tiny_sd: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The files that the commands read."""
    folder = tmp_path_factory.mktemp("files")
    config = small_config(folder, model=tiny_sd, images=images, training={"epochs": 1})
    save_file(config, folder / "config.json")
    lora = write_lora(folder / "lora.safetensors", tiny_sd, seed=1)
    assert main(["lora-merge", str(tiny_sd), str(folder / "other"), str(lora)]) == 0
    found = {"config": folder / "config.json", "lora": lora, "model": tiny_sd, "other": folder / "other"}
    found |= {"images": Path(shutil.copytree(images, folder / "images"))}
    run_dir = Path(run(config).finished.backup_path).parent.parent
    return {name: str(path) for name, path in (found | {"run": run_dir}).items()}


@pytest.mark.parametrize("is_full", [False, True], ids=["a file in its place", "a full disk"])
@pytest.mark.parametrize("verb", WRITERS)
def test_an_output_that_cannot_be_written(
    verb: str,
    is_full: bool,
    places: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out" / "folder"
    if is_full:
        out.parent.mkdir()
        FullDisk(monkeypatch, out.parent, is_full=True)
    else:
        out.parent.write_text("a file where a folder has to be")
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):  # of the queue, the machines and the secrets
        monkeypatch.setenv(name, str(out))
    monkeypatch.setattr("sys.stdin", io.StringIO("hf_secret\n"))
    code = main([verb, *WRITERS[verb].format(out=out, **places).split()])
    printed = capsys.readouterr().err
    assert code == (1 if is_full else 2), printed
    assert "full" in printed if is_full else str(out.parent) in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (RunFinished("finished", 3, "Finished."), 0),
        (RunFinished("stopped", 3, "Stopped."), 130),
        (RunFailed("The loss is not finite."), 1),
        (RunFailed("The base model does not exist.", is_refused=True), 2),
        (RunFailed("The disk is full.", is_refused=True, remedy="space"), 1),
    ],
)
def test_a_run_of_another_machine_has_the_exit_code_of_one_here(
    end: RunFinished | RunFailed, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was 1 for a config that was refused there."""
    monkeypatch.setattr(remote, "_run_at", lambda path: (tmp_path, None, Remote("box", "203.0.113.7")))
    monkeypatch.setattr(remote, "follow", lambda _remote, _run_dir, line: line.emit(end))
    assert main(["remote", "attach", str(tmp_path)]) == code


# Commands with --json, and what their JSON is.
JSON: Mapping[str, tuple[str, type]] = {
    "check": ("{config}", dict),
    "doctor": ("{config}", dict),
    "inspect": ("{lora}", dict),
    "models": ("--folder {images}", list),
    "diff": ("{config}", list),
}


@pytest.mark.parametrize("verb", JSON)
def test_json_is_all_that_is_printed(verb: str, places: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert set(JSON) == {name for name, spec in JOBS.items() if "json_text" in spec.settings.model_fields}
    arguments, kind = JSON[verb]
    assert main([verb, *arguments.format(**places).split(), "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), kind)


LINES = ("doctor", "convert", "lora-resize", "export", "sample", "mask", "train", "cache")


@pytest.mark.parametrize("verb", LINES)
def test_each_line_for_programs_is_an_event(
    verb: str,
    places: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("trainer.cli.console._read_commands", lambda *_: None)  # standard input would end it
    assert main([verb, *WRITERS[verb].format(out=tmp_path, **places).split(), "--json-lines"]) == 0
    events = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert events[-1] == ("RunFinished" if verb in ("train", "cache") else "JobFinished")
