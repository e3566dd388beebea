"""The start of a run in a process of its own: what it imports and reads, and that an equal run gives equal files."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modules.config.codec import load_file, save_file
from modules.config.schema import Config
from modules.system.paths import PROGRAM_ROOT
from tests.builders.configs import small_config
from tests.builders.runs import Ran, run
from trainer.events import RunStarted
from trainer.run import threads

# What a run of a LoRA on a diffusers folder has no use for; each takes a tenth of a second or more to import. Optional
# packages that diffusers, transformers and peft import by themselves, such as bitsandbytes and SciPy, are not among it.
UNUSED = (
    "cv2", "datasets", "imagehash", "IPython", "lycoris", "matplotlib", "onnx",
    "onnxruntime", "pandas", "prodigyopt", "pyarrow", "pytorch_optimizer", "pywt",
    "skimage", "sklearn", "tensorboard", "tkinter",
    "torch.utils.tensorboard", "torchvision", "benchmarks.report",
    "demo.make.model", "transformers.models.blip", "diffusers.pipelines.stable_diffusion",
)  # fmt: skip
TIMES = ("modelspec.date", "ss_training_started_at", "ss_training_finished_at")


@dataclass(frozen=True)
class Twice:
    """The same run twice: in a process of its own, and then in this one."""

    counts: dict[str, Any]
    files: tuple[dict[str, bytes], dict[str, bytes]]
    second: Ran
    config: Config


@pytest.fixture(scope="module")
def twice(tiny_sd: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Twice:
    folder = tmp_path_factory.mktemp("start")
    general = {"deterministic": True, "num_threads": 0}
    training = {"epochs": 1, "ema": {"mode": "train_device"}}
    config = small_config(folder, model=tiny_sd, images=images, general=general, training=training)
    save_file(config, folder / "config.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        # One thread is remembered, and measured no more.
        threads.measure_once(threads.usable_cores() - 1, lambda: 1)
        patch.setattr(threads, "_seconds", pytest.fail)
        done = subprocess.run(
            [sys.executable, "-m", "tests.builders.started", str(folder / "counts.json"), "train", "config.json"],
            cwd=PROGRAM_ROOT,
            env={**os.environ, "DARKROOM_CALLER_DIR": str(folder)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        first = _files(folder, config)
        second = run(load_file(folder / "config.json").config)
    return Twice(json.loads((folder / "counts.json").read_text()), (first, _files(folder, config)), second, config)


def _files(folder: Path, config: Config) -> dict[str, bytes]:
    """Return the files that a run has saved, by name, and remove its folder and its result."""
    [run_dir] = (folder / "workspace" / "runs").iterdir()
    [backup] = (run_dir / "backup").iterdir()
    result = Path(config.output.destination)
    found = {path.name: path.read_bytes() for path in [*backup.glob("*.safetensors"), result]}
    result.unlink()
    shutil.rmtree(run_dir)
    return found


def test_it_imports_nothing_that_it_does_not_use(twice: Twice) -> None:
    imported = set(twice.counts["modules"])
    assert [name for name in UNUSED if name in imported] == []
    assert "trainer.run.training_run" in imported  # the list is that of the run


def test_it_builds_and_reads_each_thing_once(twice: Twice) -> None:
    assert twice.counts["called"] == {
        "build_clip_tokenizer": 1,  # for the check and for the model
        "garbage collection": 0,  # while it imports: nothing of it is garbage
        "read_part": 3,
        "weights_fingerprint": 1,  # of the VAE, for the keys of its cache: the text encoder is trained
    }


def test_an_image_is_opened_for_its_size_its_digest_and_its_pixels(twice: Twice, images: Path) -> None:
    opened = {path: num for path, num in twice.counts["opened"].items() if Path(path).parent == images}
    assert {num for path, num in opened.items() if path.endswith(".png")} == {3}


def test_equal_configs_give_equal_files_in_two_processes(twice: Twice) -> None:
    assert twice.second.finished.outcome == "finished"
    assert twice.second.of(RunStarted)[0].num_threads == 1
    first, second = twice.files
    assert (
        first.keys()
        == second.keys()
        == {"weights.safetensors", "optimizer.safetensors", "ema.safetensors", "lora.safetensors"}
    )
    different = [name for name in first if _without_times(first[name]) != _without_times(second[name])]
    assert different == []
    assert first["weights.safetensors"] == second["weights.safetensors"]


def _without_times(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a safetensors file without the times in its metadata, and the bytes of its tensors."""
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    for name in TIMES:
        header.get("__metadata__", {}).pop(name, None)
    return header, content[8 + size :]


def test_the_number_of_threads_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal runs used to differ in the last bit where the second measurement came out differently."""
    seconds = {1: 1.0, 4: 0.3}
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)
    monkeypatch.setattr(threads, "_seconds", lambda num_threads: seconds[num_threads])

    def chosen(wanted: int = 0, *, is_cpu: bool = True) -> int:
        return threads.choose_num_threads(wanted, device_is_cpu=is_cpu, in_window=False)

    assert chosen() == 4
    seconds[4] = 5.0  # the machine is busy now
    assert chosen() == 4
    assert (chosen(2), chosen(is_cpu=False)) == (2, 4)


def test_the_measurement_takes_the_shortest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others show what else the machine does."""
    now = iter([0, 9, 10, 12, 20, 27, 30, 33, 40, 48])
    monkeypatch.setattr(threads, "time", SimpleNamespace(perf_counter=lambda: float(next(now))))
    assert threads._seconds(1) == 2.0
