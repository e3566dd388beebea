"""A token stays in its file: no artefact of a run holds it, nor of a run that fails with the token in its error."""

from __future__ import annotations

import base64
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.config.codec import decode, encode, save_file
from modules.config.presets import save_preset
from modules.config.schema import Config
from modules.system.paths import log_dir, secrets_file
from modules.system.redaction import MASK
from modules.system.secrets import CloudSecrets, Secrets
from modules.system.secrets_file import load_secrets, save_secrets
from tests.builders.configs import laid_over, small_config
from tests.builders.runs import Ran, run
from trainer.__main__ import main
from trainer.events import BackupSaved, Event, ModelSaved, RunFailed, SampleReady, StepFinished, WarningRaised
from trainer.methods.denoise import Denoise
from ui.loop.diagnostics import Diagnostics

TOKEN = "hf_plantedTokenThatStays0123456789"
PASSWORD = 'a "quoted" pass\\word & more'
SAMPLE = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2}


@pytest.fixture
def stored() -> Secrets:
    secrets = Secrets(TOKEN, CloudSecrets(password=PASSWORD))
    save_secrets(secrets)
    return secrets


@pytest.fixture
def config(tiny_sd: Path, images: Path, tmp_path: Path) -> Config:
    """A run that writes all that a run can write."""
    return small_config(
        tmp_path,
        model=tiny_sd,
        images=images,
        general={"tensorboard": True},
        concepts=[{"path": str(images)}, {"path": str(images), "kind": "validation"}],
        validation={"every": {"n": 1, "unit": "epoch"}, "num_timesteps": 2},
        sampling={"every": {"n": 1, "unit": "epoch"}, "at_start": True, "at_end": True, "prompts": [SAMPLE]},
        backup={"every": {"n": 1, "unit": "epoch"}, "save_every": {"n": 1, "unit": "epoch"}},
        output={"embed_config": "all", "thumbnail": True},
    )


def forms_of(value: str) -> set[bytes]:
    """A secret as a file may hold it."""
    texts = {value, json.dumps(value)[1:-1], json.dumps(json.dumps(value))[3:-3], repr(value)[1:-1]}
    return {form for t in texts for form in (t.encode(), t.encode("utf-16-le"), base64.b64encode(t.encode()))}


def files_in(folder: Path) -> list[Path]:
    """The files in a folder and in the user's home folder, where the window's log and the presets are."""
    home = Path(os.environ["XDG_STATE_HOME"]).parent
    return [f for place in (folder, home) for f in place.rglob("*") if f.is_file()]


def leaks(folder: Path, *secrets: str) -> list[str]:
    """The names of files that hold a secret in their bytes, or in an image's metadata; the secrets file excepted."""
    wanted = {form for value in secrets for form in forms_of(value)}
    found = []
    for file in (f for f in files_in(folder) if f != secrets_file()):
        content = file.read_bytes()
        if file.suffix == ".png":
            with Image.open(file) as image:
                image.load()
                content += json.dumps(image.info, default=str).encode()
        if any(form in content for form in wanted):
            found.append(file.name)
    return found


def fails_with(monkeypatch: pytest.MonkeyPatch, text: str, *, at_step: int) -> None:
    """Let a run fail in the middle, with a text in its error."""
    plain = Denoise.loss

    def loss(self: Denoise, batch: Any, context: Any) -> Any:
        if batch.step == at_step:
            raise RuntimeError(f"Illegal header value b'Bearer {text}'")
        return plain(self, batch, context)

    monkeypatch.setattr(Denoise, "loss", loss)


def output_of(ran: Ran) -> str:
    return "\n".join(repr(e) for e in ran.events)


def test_no_artefact_of_a_run_holds_a_secret(
    config: Config, stored: Secrets, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    old = encode(config) | {"secrets": {"huggingface_token": TOKEN, "cloud": {"password": PASSWORD}}}
    config = decode(old).config
    diagnostics = Diagnostics(log_dir())
    diagnostics.install()

    def log_it(event: Event, _send: object) -> None:
        if isinstance(event, StepFinished):
            logging.getLogger("some.library").warning("asked with %s and %r", TOKEN, PASSWORD)

    try:
        ran = run(config, on_event=log_it)
    finally:
        diagnostics.close()
    save_preset(config, "mine")
    save_file(config, tmp_path / "exported.json")
    assert main(["check", str(tmp_path / "exported.json"), "--json"]) == 0
    assert ran.finished.outcome == "finished"
    assert ran.of(BackupSaved)
    assert ran.of(SampleReady)
    assert [e for e in ran.of(ModelSaved) if e.is_final]
    written = {f.suffix for f in files_in(tmp_path)}
    assert {".safetensors", ".jsonl", ".txt", ".json", ".png", ".log"} <= written
    assert list(tmp_path.rglob("events.out.tfevents*"))
    [log] = tmp_path.rglob("log.txt")
    assert f"asked with {MASK}" in log.read_text()
    assert leaks(tmp_path, TOKEN, PASSWORD) == []
    spoken = capfd.readouterr()
    assert TOKEN not in output_of(ran) + spoken.out + spoken.err
    assert load_secrets().secrets == stored


def test_a_run_that_fails_with_the_token_in_its_error_does_not_tell_it(
    config: Config, stored: Secrets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fails_with(monkeypatch, f"{TOKEN} {PASSWORD}", at_step=4)
    ran = run(config)
    assert isinstance(ran.ending, RunFailed)
    assert f"Bearer {MASK} {MASK}" in ran.ending.message
    details = Path(ran.ending.details_path).read_text()
    assert "Traceback" in details
    assert f"Bearer {MASK} {MASK}" in details
    assert leaks(tmp_path, TOKEN, PASSWORD) == []
    spoken = capfd.readouterr()
    assert TOKEN not in output_of(ran) + spoken.out + spoken.err


def test_the_search_finds_what_is_not_taken_out(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the guard the same run does leak, so the search does find leaks."""
    unguarded = "hf_unguardedToken9876543210"
    monkeypatch.setattr("modules.system.secrets.keep_secret", lambda *_: None)
    save_secrets(Secrets(unguarded))
    fails_with(monkeypatch, unguarded, at_step=2)
    assert isinstance(run(config).ending, RunFailed)
    assert set(leaks(tmp_path, unguarded)) == {"events.jsonl", "log.txt", "error.txt"}


def test_the_search_looks_into_images_and_escapes(tmp_path: Path) -> None:
    info = PngInfo()
    info.add_text("parameters", f"model, {TOKEN}" + " " * 2000, zip=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "image.png", pnginfo=info)
    assert TOKEN.encode() not in (tmp_path / "image.png").read_bytes()
    (tmp_path / "embedded.json").write_text(json.dumps({"config": json.dumps({"password": PASSWORD})}))
    (tmp_path / "clean.json").write_text("{}")
    assert sorted(leaks(tmp_path, TOKEN, PASSWORD)) == ["embedded.json", "image.png"]


class Hub:
    """Keeps what a download was asked with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens: list[object] = []

    def snapshot_download(self, _name: str, *, token: object, **_: Any) -> str:
        self.tokens.append(token)
        assert TOKEN not in "".join(os.environ.values())
        return str(self.folder)


def test_the_hub_is_given_the_stored_token_and_the_environments_goes_before_it(
    tiny_sd: Path, images: Path, tmp_path: Path, stored: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(tiny_sd)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.snapshot_download)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    config = small_config(tmp_path, model=Path("somebody/something"), images=images)
    once = laid_over(config, {"training": {"epochs": 1}})
    assert run(once).finished.outcome == "finished"
    monkeypatch.setenv("HF_TOKEN", "hf_fromTheEnvironment")
    assert run(once).finished.outcome == "finished"
    assert hub.tokens == [TOKEN, None]
    assert leaks(tmp_path, TOKEN, "hf_fromTheEnvironment") == []


def test_problems_with_the_secrets_file_are_reported_by_the_run(config: Config) -> None:
    secrets_file().parent.mkdir(parents=True, exist_ok=True)
    secrets_file().write_text(f'{{"huggingface_token": "{TOKEN}')
    ran = run(laid_over(config, {"training": {"epochs": 1}}))
    assert ran.finished.outcome == "finished"
    assert [w for w in ran.of(WarningRaised) if "secrets.json.bad" in w.message]
