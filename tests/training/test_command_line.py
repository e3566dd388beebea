"""The command line: configs, changes, exit codes, a run started and stopped as a user would."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.config.codec import load_file, save_file
from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT
from tests.builders.configs import laid_over, small_config
from tests.builders.runs import run
from trainer.__main__ import main
from trainer.child.run import launch_child
from trainer.commands import Pause, Resume
from trainer.events import Event, PhaseChanged, RunFinished, StepFinished
from trainer.jobs.config import apply_changes
from trainer.launch import RunRequest
from trainer.run_folder.backup import find_backup
from trainer.run_folder.event_log import read_events


@pytest.fixture
def config_file(tiny_sd: Path, images: Path, tmp_path: Path) -> Path:
    save_file(small_config(tmp_path, model=tiny_sd, images=images), tmp_path / "config.json")
    return tmp_path / "config.json"


def process(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROGRAM_ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "trainer", *arguments],
        cwd=PROGRAM_ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_train_trains_and_reports_it_in_plain_lines(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "config.json", "--set", "training.epochs=1"]) == 0
    reported = capsys.readouterr().err
    assert (tmp_path / "out" / "lora.safetensors").is_file()
    assert "training 3/3" in reported
    assert "Finished after 3 steps." in reported
    assert "\r" not in reported


def test_ctrl_c_stops_cleanly_and_resume_continues(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Without a cache the first line is that of the first step; the next would come ten seconds later.
    with process(
        "train", str(config_file), "--set", "training.epochs=500", "--set", "data.latent_cache=false"
    ) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if line.startswith("training"):
                child.send_signal(signal.SIGINT)
                break
        rest = child.stderr.read()
        child.wait(timeout=60)
    assert child.returncode == 130
    assert "The run can be resumed from here." in rest
    [run_dir] = (tmp_path / "workspace" / "runs").iterdir()
    steps = int(rest.split("Stopped after ")[1].split()[0])
    assert main(["resume", str(run_dir), "--set", f"training.epochs={steps // 3 + 2}"]) == 0
    assert f"Finished after {3 * (steps // 3 + 2)} steps." in capsys.readouterr().err


def test_check_reports_the_problems_and_the_preview(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(config_file)]) == 0
    reported = capsys.readouterr().out
    assert "5 images (3 at 64x64, 2 at 80x48), 0 for validation." in reported
    assert "3 steps in the first epoch, 6 in total, roughly " in reported
    assert main(["check", str(config_file), "--set", "model.base_model=nowhere", "--json"]) == 2
    data = json.loads(capsys.readouterr().out)
    assert [p["path"] for p in data["problems"] if p["severity"] == "error"] == ["model.base_model"]
    assert data["preview"]["total_steps"] == 6


def test_a_run_that_is_refused_and_one_that_fails_have_their_exit_codes(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (config_file.parent / "empty").mkdir()
    broken = config_file.parent / "empty" / "model_index.json"
    broken.write_text('{"_class_name": "StableDiffusionPipeline"}')
    assert main(["train", str(config_file), "--set", f"model.base_model={broken.parent}"]) == 2
    reported = capsys.readouterr().err
    assert "unet/config.json is missing" in reported
    assert "Traceback" not in reported

    def fail(*_: object) -> None:
        raise DarkroomError("The loss is not finite.")

    monkeypatch.setattr("trainer.run.execute.carry_out", fail)
    assert main(["train", str(config_file)]) == 1
    assert "failed: The loss is not finite." in capsys.readouterr().err


def test_a_former_verb_names_the_package_that_does_it_now(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "--only", "loop"]) == 2
    assert "python -m benchmarks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "no such file.json"], "There is no file"),
        (["train", "{config}", "--set", "training.epochs=0"], "training.epochs"),
        (["train", "{config}", "--set", "training.nonsense=1"], "nonsense"),
        (["train", "{config}", "--set", "training.epochs"], "has no value"),
        (["resume", "{folder}"], "no complete backup"),
        (["sample", "{config}"], "no sample prompts"),
        (["train", "{config}", "--set", "model.base_model=nowhere"], "The base model nowhere does not exist."),
        (["preview", "{config}", "--out", "{folder}/sheet.xyz"], "sheet.xyz is not a valid name for a PNG image."),
        (["bundle", "--out", "{folder}/bundle.xyz"], "bundle.xyz is not a valid name for a zip file."),
        (["caption", "{folder}/nowhere"], "There is no folder"),
    ],
)
def test_a_wrong_command_gets_a_sentence(
    config_file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    filled = [a.format(config=config_file, folder=config_file.parent) for a in arguments]
    assert main(filled) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["train"], ["inspect"], ["queue", "run"], ["secrets", "list"]], ids=" ".join)
def test_an_unknown_option_shows_the_usage_of_its_verb(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It was the usage of the whole program."""
    positional = {"train": ["a.json"], "inspect": ["a"]}.get(verb[0], [])
    with pytest.raises(SystemExit, match="2"):
        main([*verb, *positional, "--nonsense", "extra"])
    printed = capsys.readouterr().err
    assert printed.startswith(f"usage: python -m trainer {' '.join(verb)} [-h]")
    assert printed.endswith("error: unrecognized arguments: --nonsense extra\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no header", "{} is not a safetensors file. Choose another file; if it was a safetensors file, download it"),
        (b"", "{} is empty. Download it again."),
        (None, "There is no file {}."),
    ],
)
@pytest.mark.parametrize("verb", ["sample", "lora-merge", "lora-resize"])
def test_a_file_that_cannot_be_read_gets_one_sentence(
    verb: str,
    content: bytes | None,
    words: str,
    config_file: Path,
    tiny_sd: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """There were four, of which two said that it is no adapter."""
    lora = config_file.parent / "broken.safetensors"
    if content is not None:
        lora.write_bytes(content)
    out = f"{config_file.parent}/out.safetensors"
    arguments = {
        "sample": [str(config_file), "--prompt", "x", "--lora", str(lora)],
        "lora-merge": [str(tiny_sd), out, str(lora)],
        "lora-resize": [str(lora), out, "--rank", "1"],
    }
    assert main([verb, *arguments[verb]]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(words.format(lora if content is None else lora.name))
    if content is not None and verb == "sample":
        assert main(["check", str(config_file), "--set", f"adapter.start_from={lora}"]) == 2
        assert f"adapter.start_from: {words.format(lora.name)}" in capsys.readouterr().out


def test_the_verbs_that_are_listed_are_those_for_users(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bogus"])
    printed = capsys.readouterr().err
    assert "'inspect'" in printed
    assert "'job'" not in printed


def test_inspect_says_what_a_config_is_and_who_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was called a damaged model that is to be downloaded again."""
    for name, content in (("ours.json", '{"darkroom_version": 1}'), ("other.json", '{"a": 1}')):
        (tmp_path / name).write_text(content)
        assert main(["inspect", str(tmp_path / name)]) == 2
    ours, other = capsys.readouterr().out.split(str(tmp_path / "other.json"))
    assert "ours.json is a training config, not a model. Open it as one; the verbs check and diff read it" in ours
    assert "damaged" not in ours
    assert "other.json is not a safetensors file" in other


@pytest.mark.parametrize("name", ["folder", "nowhere", "empty", "broken.safetensors"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_inspect_fails_for_what_is_no_model(
    name: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "broken.safetensors").write_bytes(b"no header")
    assert main(["inspect", str(tmp_path / name), *options]) == 2
    printed = capsys.readouterr().out
    assert not options or json.loads(printed)["path"] == str(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "resolutions"),
    [("64", (64,)), ("64, 96x64", (64, "96x64")), ('"64,96"', (64, 96)), ("[64, 96]", (64, 96))],
)
def test_several_values_are_set_as_the_window_shows_them(text: str, resolutions: tuple[int | str, ...]) -> None:
    """Only JSON lists were accepted; the docs and the window write 512, 768."""
    assert apply_changes(Config(), [f"data.resolution_px={text}"]).data.resolution_px == resolutions


def test_paths_are_resolved_against_where_the_user_stood(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The launcher changes into the program's folder and leaves the caller's in DARKROOM_CALLER_DIR."""
    monkeypatch.setenv("DARKROOM_CALLER_DIR", str(config_file.parent))
    assert main(["check", "config.json"]) == 0


def test_sample_generates_with_and_without_a_lora(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 3}
    prompts = ["--set", f"sampling.prompts={json.dumps([prompt])}"]
    config = laid_over(load_file(config_file).config, {"training": {"learning_rate": 0.05}})
    lora = str(run(config).finished.model_path)
    capsys.readouterr()
    images = []
    for name, options in (("with", ["--lora", lora]), ("plain", [])):
        assert main(["sample", str(config_file), "--out", str(tmp_path / name), *prompts, *options]) == 0
        images.append(Path(capsys.readouterr().out.strip()).read_bytes())
    assert images[0] != images[1]


@pytest.mark.full
@pytest.mark.parametrize("is_kept_by_nohup", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_closed_terminal_stops_a_run_cleanly(config_file: Path, tmp_path: Path, is_kept_by_nohup: bool) -> None:
    """It used to end the process at once, and all since the last backup was lost. Then nothing can be printed."""
    master, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 120))

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if is_kept_by_nohup else signal.SIG_DFL)

    epochs = 3 if is_kept_by_nohup else 500
    child = subprocess.Popen(
        [sys.executable, "-m", "trainer", "train", str(config_file), "--set", f"training.epochs={epochs}"],
        cwd=PROGRAM_ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROGRAM_ROOT)},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(terminal)
    seen = b""
    while b"training:" not in seen:  # the bar of the steps
        seen += os.read(master, 4096)
    os.close(master)
    assert child.wait(timeout=60) == (0 if is_kept_by_nohup else 130)
    [run_dir] = (tmp_path / "workspace" / "runs").iterdir()
    [*_, last] = read_events(run_dir)
    assert isinstance(last, RunFinished)
    assert last.outcome == ("finished" if is_kept_by_nohup else "stopped")
    assert find_backup(run_dir).step == last.step


@pytest.mark.full
def test_a_real_child_pauses_continues_and_stops_when_its_parent_is_gone(config_file: Path) -> None:
    config = laid_over(load_file(config_file).config, {"training": {"epochs": 500}})
    child = launch_child(RunRequest(config))

    def wait_for(condition: Callable[[Event], bool]) -> Event:
        return next(e for e in iter(lambda: child.events.get(timeout=60), None) if condition(e))

    wait_for(lambda event: isinstance(event, StepFinished))
    child.send(Pause())
    wait_for(lambda event: isinstance(event, PhaseChanged) and event.phase == "paused")
    child.send(Resume())
    wait_for(lambda event: isinstance(event, StepFinished))
    assert child.process.stdin is not None
    child.process.stdin.close()  # as the system does when the parent has ended, however
    ending = wait_for(lambda event: isinstance(event, RunFinished))
    assert isinstance(ending, RunFinished)
    assert ending.outcome == "stopped"
    assert child.process.wait(timeout=60) == 130


@pytest.mark.parametrize("verb", ["check", "train"])
def test_a_file_without_settings_is_refused(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A workflow of another program used to be a config with all defaults."""
    file = tmp_path / "workflow.json"
    file.write_text('{"last_node_id": 9, "nodes": [], "links": []}', encoding="utf-8")
    assert main([verb, str(file)]) == 2
    reason = "nothing in it is a setting. It contains 'last_node_id', 'nodes', 'links'."
    assert f"{file} does not contain a config: {reason}" in capsys.readouterr().err
    file.write_text("[1]", encoding="utf-8")
    assert main([verb, str(file)]) == 2
    assert f"{file} does not contain a config: it is not a JSON object." in capsys.readouterr().err


def test_the_defaults_are_a_config() -> None:
    assert Config().training.epochs > 0


def test_a_reader_who_has_seen_enough_is_no_error(tiny_sd: Path) -> None:
    """As in `inspect FILE | head -1`: the pipe is closed before all lines are written."""
    with process("inspect", str(tiny_sd / "vae" / "diffusion_pytorch_model.safetensors")) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        reported = child.stderr.read()
        child.wait(timeout=60)
    assert child.returncode == 0
    assert "Traceback" not in reported
    assert "BrokenPipe" not in reported
