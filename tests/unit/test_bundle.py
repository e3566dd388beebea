"""The debug bundle: what is in it, what is not, and the verb."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from modules.config.codec import decode
from modules.config.schema import Config
from modules.system.secrets import CloudSecrets, Secrets
from modules.system.secrets_file import save_secrets
from trainer.__main__ import main
from trainer.run_folder.bundle import collect_bundle, newest_run, remove_secrets

TOKEN = "hf_" + "abcdefgh" * 4
STORED = "a-token-without-a-form"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace" / "runs" / "2026-01-02_03-04-05"
    folder.mkdir(parents=True)
    (folder.parent / "2025-01-02_03-04-05").mkdir()
    lines = [f'{{"event": "x", "path": "{Path.home()}/models", "note": "{TOKEN} {STORED}"}}'] * 9000
    (folder / "events.jsonl").write_text("\n".join(lines))
    (folder / "error.txt").write_text("It broke.")
    return folder


def test_a_bundle_has_no_secret_and_only_the_end_of_logs(run_dir: Path, tmp_path: Path) -> None:
    save_secrets(Secrets(huggingface_token=STORED))
    log = tmp_path / "window.log"
    log.write_text(f"https://me:password1@host/x {TOKEN}")
    config = decode({"general": {"notes": f"my {STORED}"}, "huggingface_token": TOKEN}).config
    files = {f.name: f.text for f in collect_bundle(config, run_dir=run_dir, log_file=log)}
    assert list(files) == [
        "config.json", "environment.txt", "hardware.txt", "window.log", "events.jsonl", "error.txt",
    ]  # fmt: skip
    assert json.loads(files["config.json"])["general"]["notes"] == "my [secret]"
    for text in files.values():
        assert not any(secret in text for secret in (TOKEN, STORED, "password1", f"{Path.home()}/"))
    assert files["window.log"] == "https://[secret]@host/x [secret]"
    assert len(files["events.jsonl"]) < 400_000
    assert files["events.jsonl"].startswith('{"event": "x", "path": "~/models", "note": "[secret] [secret]"}')
    assert "torch" in files["environment.txt"]
    assert "Memory: " in files["hardware.txt"]


def test_what_does_not_exist_is_left_out(tmp_path: Path) -> None:
    files = collect_bundle(Config(), run_dir=tmp_path / "gone", log_file=tmp_path / "gone.log")
    assert [f.name for f in files] == ["config.json", "environment.txt", "hardware.txt"]
    assert remove_secrets("nothing") == "nothing"


def test_the_verb_writes_a_zip_once(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert newest_run(run_dir.parents[1]) == run_dir
    target = tmp_path / "report.zip"
    arguments = ["bundle", "--run", str(run_dir.parents[1]), "--out", str(target)]
    assert main([*arguments, "--list"]) == 0
    assert not target.exists()
    assert main(arguments) == 0
    assert "It contains no tokens, images or weights." in capsys.readouterr().out
    assert "error.txt" in zipfile.ZipFile(target).namelist()
    assert main(arguments) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["bundle", "--run", str(tmp_path / "empty")]) == 2


def test_a_bundle_has_nothing_of_the_secrets_file(tmp_path: Path) -> None:
    """Also not the values that logs may contain: the host, the user, and entries of other programs."""
    others = {"civitai": {"key": "short7"}, "list": ["first-one"], "port": 22, "flag": True}
    cloud = CloudSecrets(host="10.1.2.3", user="alice", port="2222", key_file="/home/a/id_ed25519")
    save_secrets(Secrets(cloud=cloud, others=others))
    log = tmp_path / "window.log"
    log.write_text("alice@10.1.2.3 port 2222 short7 first-one /home/a/id_ed25519 malice root 22")
    found = next(f.text for f in collect_bundle(None, log_file=log) if f.name == "window.log")
    assert found == "[secret]@[secret] port 2222 [secret] [secret] [secret] malice root 22"
