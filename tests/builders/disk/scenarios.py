"""What the program writes besides a run, each as an old state, an action and what its own readers find."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file as load_tensors
from safetensors.numpy import save as bytes_of

from modules.config.codec import decode, load_file, save_file
from modules.config.own_presets import delete_preset, describe_preset, duplicate_preset, rename_preset
from modules.config.presets import Preset, save_preset
from modules.data.cache.store import BrokenEntryError, CacheStore, remove_entries
from modules.data.doctor.fixes import Step, apply
from modules.rewards.user_code_file import approve, approved_hashes
from modules.system.atomic import make_folder
from modules.system.secrets import Secrets
from modules.system.secrets_file import load_secrets, save_secrets
from trainer.__main__ import main
from trainer.jobs.annotation import Originals
from trainer.jobs.caption import CaptionJob, caption_work
from trainer.jobs.mask import MaskJob, mask_work
from trainer.run_folder.backup import BackupInfo, list_backups, make_newest, remove_older, verify, write_backup
from trainer.run_folder.choices import Answer, all_requests, answer, answer_of, ask
from trainer.run_folder.fork import fork_into, origin_of
from trainer.run_folder.result import use_as_result
from trainer.run_folder.trash import delete_run
from trainer.run_queue.file import QueueFile
from ui.app.session_files import read_session, save_session
from ui.forms.model import Document, Source
from ui.forms.preferences import UiSettings

NOW = datetime(2026, 3, 4, 5, 6, 7)
Observed = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Scenario:
    """An action on a folder. `observe` reads each thing in it by itself: it must be the old one or the new one."""

    name: str
    prepare: Callable[[Path], object]
    act: Callable[[Path], object]
    observe: Callable[[Path], Observed]


class Told(Exception):  # noqa: N818 - what the command line printed
    """A verb of the command line that failed, with what it printed."""


def verb(root: Path, *arguments: str) -> None:
    """Carry out a verb of the command line whose own folders are below the root. Raises Told."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CONFIG", "STATE", "CACHE", "DATA"):
            patch.setenv(f"XDG_{name}_HOME", str(root / "home" / name.lower()))
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
            code = main(list(arguments))
    if code:
        raise Told(printed.getvalue())


# -- configs, presets, secrets, the queue and the session


def _config(epochs: int, names: tuple[str, ...]) -> Any:
    concepts = [{"name": n} for n in names]
    tree = {"darkroom_version": 2, "training": {"epochs": epochs}, "concepts": concepts, "concepts_file": "list.json"}
    return decode(tree).config


def _observe_config(root: Path) -> Observed:
    loaded = load_file(root / "config.json")
    assert not [p for p in loaded.problems if p.severity == "error"], loaded.problems
    kept = root / "config.json.bak"
    return {
        "epochs": loaded.config.training.epochs,
        "concepts": tuple(c.name for c in loaded.config.concepts),
        "kept": kept.read_text() if kept.exists() else None,
    }


def _foreign_config(root: Path) -> None:
    (root / "config.json").write_text('{"__version": 5, "epochs": 7, "training_method": "LORA"}')


def _preset(root: Path, name: str) -> Preset:
    return Preset(name, "own", root / "presets" / f"{name}.json")


def _observe_presets(root: Path) -> Observed:
    files = sorted((root / "presets").glob("*.json"))
    notes = {f.stem: load_file(f).config.general.notes for f in files}
    return {
        "old": notes.get("first", notes.get("renamed")),
        "copy": notes.get("second copy"),
        "second": "second" in notes,
    }


def _change_presets(root: Path) -> None:
    if _preset(root, "first").path.exists():
        describe_preset(_preset(root, "first"), "new")
    if not _preset(root, "second copy").path.exists():
        duplicate_preset(_preset(root, "second"), user_dir=root / "presets")
    if _preset(root, "first").path.exists():
        rename_preset(_preset(root, "first"), "renamed")
    if _preset(root, "second").path.exists():
        delete_preset(_preset(root, "second"))


def _prepare_presets(root: Path) -> None:
    for name in ("first", "second"):
        save_preset(_config(3, ("a",)), name, user_dir=root / "presets")


def _queue(root: Path) -> list[str]:
    return [item.name for item in QueueFile(root / "home" / "state" / "darkroom" / "queue.json").read().items]


def _write_run_config(root: Path) -> None:
    save_file(decode({"darkroom_version": 2}).config, root / "run.json")


def _add_to_queue(root: Path) -> None:
    verb(root, "queue", "add", str(root / "run.json"), "--name", "new")


def _observe_queue(root: Path) -> Observed:
    names = _queue(root)
    return {"old": "old" in names, "new": "new" in names}


def _document(epochs: int) -> Document:
    config = _config(epochs, ("a",))
    return Document(config, config, Source())


def _save_session(root: Path, epochs: int) -> None:
    if not save_session(root / "session.json", _document(epochs), UiSettings()):
        raise Told(f"The session could not be saved to {root / 'session.json'}")


# -- datasets


class _Model:
    def caption(self, image: Image.Image) -> str:
        return f"a disc of {image.width}"

    def mask(self, image: Image.Image) -> Any:
        return np.full((image.height, image.width), 0.9, np.float32)


def _images(root: Path) -> None:
    (root / "images").mkdir()
    for number in range(2):
        Image.new("RGB", (8, 8), (number, 9, 9)).save(root / "images" / f"{number}.png")
        (root / "images" / f"{number}.txt").write_text("old")
        Image.new("L", (8, 8), 7).save(root / "images" / f"{number}-masklabel.png")


def _annotate(root: Path) -> None:
    captions = CaptionJob(folder=str(root / "images"), model="blip_base", mode="replace")
    for work in (
        caption_work(captions, _Model, Originals(root / "images", root / "kept")),
        mask_work(
            MaskJob(folder=str(root / "images"), model="colour", mode="replace"),
            _Model,
            Originals(root / "images", root / "kept"),
        ),
    ):
        for number in range(2):
            work.do(root / "images" / f"{number}.png")


def _observe_dataset(root: Path) -> Observed:
    found: dict[str, object] = {}
    for number in range(2):
        found[f"caption {number}"] = (root / "images" / f"{number}.txt").read_text()
        with Image.open(root / "images" / f"{number}-masklabel.png") as mask:
            found[f"mask {number}"] = mask.getpixel((0, 0))
    return found


def _fix(root: Path) -> None:
    aside = root / "images" / ".set-aside"
    free = next(place for n in range(9) if not (place := aside / f"1-{n}.txt").exists())
    rewriting = Step(root / "images" / "1.txt", free, text="rewritten")
    apply([Step(root / "images" / "0.txt", aside / "0.txt"), rewriting])


def _observe_fixed(root: Path) -> Observed:
    first, second = root / "images" / "0.txt", root / "images" / "1.txt"
    kept = [p.read_text() for p in (root / "images" / ".set-aside" / "0.txt", first) if p.exists()]
    return {"first": tuple(kept), "second": second.read_text()}


# -- run folders and results


def _files_of_backup(folder: Path) -> None:
    (folder / "weights.safetensors").write_bytes(bytes_of({"a": np.arange(64, dtype=np.float32)}))
    (folder / "deep").mkdir()
    (folder / "deep" / "state.json").write_text("{}")
    (folder / "config.json").write_text("{}")


def _back_up(run_dir: Path, step: int) -> BackupInfo:
    return write_backup(run_dir, step=step, epoch=step, now=NOW, write=_files_of_backup)


def _run_dir(root: Path) -> Path:
    return root / "workspace" / "runs" / "2026-01-01_00-00-00"


def _prepare_run(root: Path) -> None:
    run_dir = _run_dir(root)
    run_dir.mkdir(parents=True)
    _back_up(run_dir, 10)
    _back_up(run_dir, 20)
    (run_dir / "embeddings").mkdir()
    (run_dir / "embeddings" / "word.safetensors").write_bytes(b"word")
    (run_dir / "start.safetensors").write_bytes(b"start")
    (run_dir / "events.jsonl").write_text("")


def _backups(root: Path) -> set[int]:
    found = list_backups(_run_dir(root))
    for backup in found:
        verify(backup)
    return {backup.step for backup in found}


def _rotate_backups(root: Path) -> None:
    _back_up(_run_dir(root), 20)
    _back_up(_run_dir(root), 30)
    remove_older(_run_dir(root), keep=1)


def _observe_backups(root: Path) -> Observed:
    steps = _backups(root)
    assert steps, "all backups are gone"
    return {"newest": max(steps)}


def _choose_older(root: Path) -> None:
    make_newest(next(b for b in list_backups(_run_dir(root)) if b.step == 10), now=NOW)


def _observe_choice_of_backup(root: Path) -> Observed:
    return {"all": _backups(root), "newest": list_backups(_run_dir(root))[-1].step}


def _fork(root: Path) -> None:
    copy = root / "workspace" / "runs" / "2026-02-02_00-00-00"
    backup = next(b for b in list_backups(_run_dir(root)) if b.step == 20)
    if not list_backups(copy):
        make_folder(copy)
        fork_into(copy, backup)


def _observe_fork(root: Path) -> Observed:
    copy, here = root / "workspace" / "runs" / "2026-02-02_00-00-00", _backups(root)
    found = list_backups(copy)
    for backup in found:
        verify(backup)
        assert origin_of(copy) is not None
        assert (copy / "embeddings" / "word.safetensors").read_bytes() == b"word"
        assert (copy / "start.safetensors").read_bytes() == b"start"
    return {"original": here, "fork": [b.step for b in found]}


def _delete(root: Path) -> None:
    if _run_dir(root).exists():
        delete_run(_run_dir(root))


def _observe_deleted(root: Path) -> Observed:
    places = [p for p in (_run_dir(root), root / "workspace" / ".trash" / _run_dir(root).name) if p.exists()]
    assert len(places) == 1
    backups = list_backups(places[0])
    for backup in backups:
        verify(backup)
    return {"backups": [b.step for b in backups], "is deleted": places[0] != _run_dir(root)}


def _model_file(path: Path, value: int) -> None:
    path.write_bytes(bytes_of({"a": np.full(64, value, np.float32)}))


def _prepare_results(root: Path) -> None:
    _model_file(root / "result.safetensors", 1)
    _model_file(root / "best.safetensors", 2)
    for name, value in (("result", 1), ("best", 2)):
        (root / name / "unet").mkdir(parents=True)
        _model_file(root / name / "unet" / "weights.safetensors", value)
        (root / name / "model_index.json").write_text(json.dumps({"value": value}))


def _use_best(root: Path) -> None:
    use_as_result(root / "best.safetensors", root / "result.safetensors", run_dir=root, is_kept=True)
    use_as_result(root / "best", root / "result", run_dir=root, is_kept=False)


def _observe_results(root: Path) -> Observed:
    folder = root / "result"
    values = {
        int(load_tensors(folder / "unet" / "weights.safetensors")["a"][0]),
        json.loads((folder / "model_index.json").read_text())["value"],
    }
    return {"file": int(load_tensors(root / "result.safetensors")["a"][0]), "folder": values}


def _choose(root: Path) -> None:
    request = ask(root, "one", "a disc", [b"one", b"two"])
    if answer_of(request) is None:
        answer(request, Answer("chosen", best=0, worst=1))


def _observe_choice(root: Path) -> Observed:
    found = all_requests(root)
    return {
        "request": [[image.read_bytes() for image in r.images] for r in found],
        "is answered": any(answer_of(r) is not None for r in found),
    }


# -- a cache whose entries are joined to shards


def _fill_cache(root: Path) -> None:
    store = CacheStore(root / "cache", entries_per_shard=2)
    for number in range(5):
        store.write(f"{number:040x}", {"latents": torch.full((3,), float(number))})


def _prune_cache(root: Path) -> None:
    store = CacheStore(root / "cache")
    remove_entries([e for e in store.entries() if e.key == f"{1:040x}"])


def _observe_cache(root: Path) -> Observed:
    """What each entry holds; one that is missing or damaged is encoded again."""
    store, found = CacheStore(root / "cache"), dict[str, object]()
    for number in range(5):
        try:
            found[f"entry {number}"] = store.read(f"{number:040x}")["latents"].tolist()
        except BrokenEntryError:
            found[f"entry {number}"] = None
    return found


SCENARIOS = (
    Scenario(
        "config",
        lambda root: save_file(_config(1, ("a", "b")), root / "config.json"),
        lambda root: save_file(_config(2, ("c",)), root / "config.json"),
        _observe_config,
    ),
    Scenario(
        "config of another program",
        _foreign_config,
        lambda root: save_file(decode({"darkroom_version": 2, "training": {"epochs": 2}}).config, root / "config.json"),
        _observe_config,
    ),
    Scenario("presets", _prepare_presets, _change_presets, _observe_presets),
    Scenario(
        "secrets",
        lambda root: save_secrets(Secrets("hf_old_old_old"), root / "secrets.json"),
        lambda root: save_secrets(Secrets("hf_new_new_new"), root / "secrets.json"),
        lambda root: {"secrets": load_secrets(root / "secrets.json").secrets.huggingface_token},
    ),
    Scenario(
        "approved code",
        lambda root: approve("a" * 64, root / "code.py", file=root / "approved.json"),
        lambda root: approve("b" * 64, root / "code.py", file=root / "approved.json"),
        lambda root: {"hashes": {h[0] for h in approved_hashes(root / "approved.json")}},
    ),
    Scenario("queue", _write_run_config, _add_to_queue, _observe_queue),
    Scenario(
        "session",
        lambda root: _save_session(root, 1),
        lambda root: _save_session(root, 2),
        lambda root: {"epochs": read_session(root / "session.json").document.config.training.epochs},
    ),
    Scenario("captions and masks", _images, _annotate, _observe_dataset),
    Scenario("dataset fixes", _images, _fix, _observe_fixed),
    Scenario("backups", _prepare_run, _rotate_backups, _observe_backups),
    Scenario("choice of a backup", _prepare_run, _choose_older, _observe_choice_of_backup),
    Scenario("fork", _prepare_run, _fork, _observe_fork),
    Scenario("deleted run", _prepare_run, _delete, _observe_deleted),
    Scenario("best model as result", _prepare_results, _use_best, _observe_results),
    Scenario("cache", lambda root: None, _fill_cache, _observe_cache),
    Scenario("pruned cache", _fill_cache, _prune_cache, _observe_cache),
    Scenario("images to choose from", lambda root: None, _choose, _observe_choice),
)
