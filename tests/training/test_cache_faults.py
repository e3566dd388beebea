"""Caches that several runs share, that are killed, that overflow, and that are in memory or in 16 bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks.loop_speed import run_setup
from modules.config.codec import export_file
from modules.config.schema import Config
from modules.data.buckets import Size, resize_crop_for
from modules.data.cache import digests
from modules.data.cache.build import EncodingJob, ImageFile, batches_by_bucket, build_images
from modules.data.cache.memory import MemoryStore
from modules.data.cache.store import BrokenEntryError, CacheStore
from modules.data.transforms.recipe import plain_recipe
from modules.families.parts import vae
from modules.memory.placement import Placement
from modules.system.paths import PROGRAM_ROOT
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, run
from trainer.commands import CommandDesk
from trainer.data.encoders import Encoders
from trainer.events import CacheFilled, CacheProgress, RunFailed, StepFinished, WarningRaised
from trainer.launch import RunRequest
from trainer.run.execute import execute_guarded
from trainer.run.training_run import prepare

NUM_IMAGES = 5
needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")


@pytest.fixture
def config(tiny_sd: Path, tmp_path: Path) -> Config:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 3 + [(96, 64)] * 2)
    return small_config(tmp_path, model=tiny_sd, images=images, parts={"text_encoder": {"train": False}})


def cached(config: Config) -> Ran:
    ran = Ran()
    execute_guarded(RunRequest(config, kind="cache", in_window=False), emit=ran.events.append, desk=CommandDesk())
    return ran


def stores(config: Config) -> list[CacheStore]:
    return [CacheStore(Path(config.general.cache_dir) / kind) for kind in ("latents", "text")]


def losses(ran: Ran) -> list[float | None]:
    assert ran.finished.outcome == "finished"
    return [s.loss for s in ran.of(StepFinished)]


def assert_readable(store: CacheStore) -> int:
    entries = [e for e in store.entries() if e.key]
    for entry in entries:
        store.read(entry.key)
    return len(entries)


def script(code: str, *arguments: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=PROGRAM_ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def job(key: str, path: Path, width_px: int) -> EncodingJob:
    return EncodingJob(key, ImageFile(path, plain_recipe(resize_crop_for(width_px, 64, (Size(width_px, 64),)))))


# -- several runs, and runs that are killed

TWO_RUNS = """
import os, sys
from pathlib import Path
from modules.config.codec import load_file
from benchmarks.loop_speed import run_setup
from trainer.commands import CommandDesk
from trainer.data.encoders import Encoders
from trainer.events import CacheFilled
from trainer.launch import RunRequest
from trainer.run.execute import execute_guarded
from trainer.run.training_run import prepare

config, events = load_file(Path(sys.argv[1])).config, []
children = []
for _ in range(2):
    if pid := os.fork():
        children.append(pid)
        continue
    execute_guarded(RunRequest(config, kind="cache", in_window=False), emit=events.append, desk=CommandDesk())
    encoded = sum(event.num_entries - event.num_found for event in events if isinstance(event, CacheFilled))
    Path(f"{sys.argv[1]}.{os.getpid()}").write_text(str(encoded))
    os._exit(0 if getattr(events[-1], "outcome", "") == "cached" else 1)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
"""

KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
import torch
from modules.data.cache import store as module

store, tensors = module.CacheStore(Path(sys.argv[1])), {"latents": torch.arange(4096.0)}
write_bytes, replace = Path.write_bytes, Path.replace

def die(*_arguments, **_options):
    os.kill(os.getpid(), signal.SIGKILL)

def half(file, content):
    write_bytes(file, content[:len(content) // 2])
    die()

for key, name, function in (
    ("aa0", "write_bytes", die), ("aa1", "write_bytes", half), ("aa2", "replace", die),
    ("aa3", "replace", lambda source, target: (replace(source, target), die())),
):
    if not (pid := os.fork()):
        setattr(Path, name, function)
        store.write(key, tensors)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
for number in (1, 5, 40):
    if not (pid := os.fork()):
        for entry in range(10_000):
            store.write(f"{number:02d}{entry:04d}", tensors)
        os._exit(1)
    while len(list(store.folder.glob(f"{number:02d}/{number:02d}*"))) < number:
        pass
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
"""


@pytest.mark.full
@needs_fork
def test_two_runs_fill_one_cache_at_once(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    export_file(config, file)
    assert script(TWO_RUNS, file).strip() == "[0, 0]"
    encoded = [int(count.read_text()) for count in tmp_path.glob("config.json.*")]
    assert len(encoded) == 2
    assert sum(encoded) == NUM_IMAGES + NUM_IMAGES + 1, "each entry by one of them"
    assert [assert_readable(store) for store in stores(config)] == [NUM_IMAGES, NUM_IMAGES + 1]
    assert not cached(config).of(CacheProgress), "nothing is left to do"


@needs_fork
def test_a_run_that_is_killed_leaves_no_entry_that_cannot_be_read(tmp_path: Path) -> None:
    """Killed before, in the middle of and after writing, before and after renaming, and at arbitrary moments."""
    script(KILLED_WHILE_WRITING, tmp_path)
    store = CacheStore(tmp_path)
    assert [store.has(f"aa{n}") for n in range(4)] == [False, False, False, True]
    assert assert_readable(store) >= 1 + 1 + 5 + 40


def test_an_entry_that_another_run_has_written_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows a file that is being read cannot be replaced."""
    store = CacheStore(tmp_path)
    store.write("aa", {"latents": torch.ones(2)})
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(PermissionError("in use")))
    store.write("aa", {"latents": torch.ones(2)})
    assert store.read("aa")["latents"].tolist() == [1, 1]
    with pytest.raises(PermissionError):
        store.write("bb", {"latents": torch.ones(2)})
    assert [e.key for e in store.entries()] == ["aa"]


# -- files that change while the caches are filled


def entries(config: Config) -> dict[str, dict[str, torch.Tensor]]:
    kinds = [CacheStore(Path(config.general.cache_dir) / kind) for kind in ("latents", "masks")]
    return {e.key: store.read(e.key) for store in kinds for e in store.entries()}


@pytest.mark.parametrize("name", ["001.png", "001-masklabel.png"])
def test_no_entry_has_the_content_of_another_file_than_its_key(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An image that was edited between its digest and its encoding: the entry was used when the old one came back."""
    images = tmp_path / "images"
    for number in range(NUM_IMAGES):
        Image.new("L", (64 if number < 3 else 96, 64), 50 * number).save(images / f"00{number}-masklabel.png")
    config = laid_over(config, {"masks": {"enabled": True}})
    file, plain = images / name, digests._digest_of
    old, other = file.read_bytes(), (images / name.replace("1", "2")).read_bytes() + b"end"

    def digest_of(path: Path) -> str:
        digest = plain(path)
        if path == file:
            file.write_bytes(other)
        return digest

    with monkeypatch.context() as patch:
        patch.setattr(digests, "_digest_of", digest_of)
        ran = cached(config)
    if "mask" not in name:
        assert ran.of(CacheFilled)[0].num_entries == NUM_IMAGES - 1, "the other one was not encoded"
    told = [*(w.message for w in ran.of(WarningRaised)), getattr(ran.ending, "message", "")]
    assert [t for t in told if f"{file} cannot be used (it was changed while" in t], told
    file.write_bytes(old)
    cached(config)
    anew = laid_over(config, {"general": {"cache_dir": str(tmp_path / "anew")}})
    cached(anew)
    found, expected = entries(config), entries(anew)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[k][n], expected[k][n]) for k in expected for n in expected[k])


def test_an_image_that_is_deleted_meanwhile_is_named(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, last = digests._digest_of, tmp_path / "images" / "004.png"

    def digest_of(path: Path) -> str:
        last.unlink(missing_ok=True)
        return plain(path)

    monkeypatch.setattr(digests, "_digest_of", digest_of)
    ending = cached(config).ending
    assert isinstance(ending, RunFailed)
    assert ending.message == f"{last} does not exist. It was there when the images were listed."
    assert "What was encoded is kept." in ending.advice


def test_a_file_that_was_only_touched_is_used(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = digests._digest_of

    def digest_of(path: Path) -> str:
        os.utime(path, (1, 1))
        return plain(path)

    monkeypatch.setattr(digests, "_digest_of", digest_of)
    ran = cached(config)
    assert [e.num_found for e in ran.of(CacheFilled)] == [0, 0]
    assert len(entries(config)) == NUM_IMAGES


# -- latents that are not finite


def overflowing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the VAE overflow in float16 for the second image."""
    plain, second = vae.encode_mean, job("", folder / "images" / "001.png", 64).image.load_tensor()

    def encode_mean(model: Any, images_B3PP: torch.Tensor, *, factor: int) -> torch.Tensor:
        latents = plain(model, images_B3PP, factor=factor)
        if next(model.parameters()).dtype == torch.float16:
            latents[[torch.equal(image, second) for image in images_B3PP]] = float("nan")
        return latents

    monkeypatch.setattr(vae, "encode_mean", encode_mean)


@pytest.fixture
def in_float16(config: Config) -> Config:
    return laid_over(config, {"parts": {"vae": {"dtype": "float16"}}})


@pytest.mark.full
def test_latents_that_overflow_are_encoded_in_float32_and_named(
    in_float16: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = losses(run(in_float16))
    overflowing(monkeypatch, tmp_path)
    anew = laid_over(in_float16, {"general": {"cache_dir": f"{in_float16.general.cache_dir}-2"}})
    ran = run(anew)
    [warning] = [w.message for w in ran.of(WarningRaised) if "NaN" in w.message]
    assert "001.png" in warning
    assert not any(f"00{n}.png" in warning for n in (0, 2, 3, 4))
    assert losses(ran) == pytest.approx(plain, rel=1e-3)
    latents, _ = stores(anew)
    assert {latents.read(e.key)["latents"].dtype for e in latents.entries()} == {torch.float16}
    assert not [w for w in run(anew).of(WarningRaised) if "NaN" in w.message], "the entry is there"


def test_without_a_cache_they_are_encoded_alike_and_named_once(
    in_float16: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overflowing(monkeypatch, tmp_path)
    expected = losses(run(in_float16))
    ran = run(laid_over(in_float16, {"data": {"latent_cache": False}}))
    assert losses(ran) == expected
    [warning] = [w.message for w in ran.of(WarningRaised) if "NaN" in w.message]
    assert "001.png" in warning


# -- batches, memory, 16 bits


def test_images_are_encoded_in_batches_of_one_size_that_differ_in_nothing(tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "images", sizes=[(64, 64), (96, 64)] * 4)
    (folder / "002.png").write_bytes(b"no image")
    jobs = [job(f"{i}a", p, (64, 96)[i % 2]) for i, p in enumerate(sorted(folder.glob("*.png")))]
    assert [[j.key for j in b] for b in batches_by_bucket(jobs, 3)] == [
        ["0a", "2a", "4a"],
        ["1a", "3a", "5a"],
        ["6a"],
        ["7a"],
    ]
    sizes: list[int] = []

    def encode(images_B3PP: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images_B3PP))
        return images_B3PP[:, :, ::8, ::8]

    alone, together = MemoryStore(), MemoryStore()
    for store, batch_size in ((alone, 1), (together, 3)):
        built = list(build_images(jobs, store, encode, threads=2, batch_size=batch_size))
        assert {b.key for b in built} == {j.key for j in jobs}
        assert [b.path for b in built if b.problem] == [folder / "002.png"]
    assert sizes == [1] * 7 + [2, 3, 1, 1]
    for key in (j.key for j in jobs if j.key != "2a"):
        assert torch.equal(alone.read(key)["latents"], together.read(key)["latents"])


def test_a_cache_in_memory_writes_nothing_and_trains_the_same(config: Config, tmp_path: Path) -> None:
    in_memory = laid_over(config, {"data": {"cache_location": "memory"}})
    ran = run(in_memory)
    assert not (tmp_path / "cache").exists()
    assert [e.num_found for e in ran.of(CacheFilled)] == [0, 0]
    assert losses(ran) == losses(run(config))
    refused = cached(in_memory)
    assert "in memory" in str(refused.ending)


@pytest.mark.daily(1)
@pytest.mark.parametrize("kept_in", ["bfloat16", "float16"])
def test_a_cache_in_16_bits_has_half_the_size(config: Config, kept_in: str) -> None:
    plain = {e.what: e.num_bytes for e in cached(config).of(CacheFilled)}
    smaller = laid_over(
        config, {"data": {"cache_dtype": kept_in}, "general": {"cache_dir": f"{config.general.cache_dir}-2"}}
    )
    half = {e.what: e.num_bytes for e in cached(smaller).of(CacheFilled)}
    for store in stores(smaller):
        for entry in store.entries():
            assert {str(t.dtype) for t in store.read(entry.key).values()} == {f"torch.{kept_in}"}
    assert half["captions"] < 0.6 * plain["captions"]
    assert half["images"] < plain["images"]
    assert losses(run(smaller)) == pytest.approx(losses(run(config)), rel=0.02)


def test_a_cache_in_the_dtype_of_the_run_makes_no_difference(config: Config) -> None:
    in_bfloat16 = laid_over(config, {"training": {"precision": "bfloat16"}})
    assert losses(run(laid_over(in_bfloat16, {"data": {"cache_dtype": "bfloat16"}}))) == losses(run(in_bfloat16))


def test_values_beyond_the_range_of_a_dtype_keep_theirs(tmp_path: Path) -> None:
    large, small = torch.tensor([1e5]), torch.tensor([1.5])
    for store in (CacheStore(tmp_path, torch.float16), MemoryStore(torch.float16)):
        kept = store.write("aa", {"large": large, "small": small, "ids": torch.tensor([7])})
        assert {n: t.dtype for n, t in store.read("aa").items()} == {n: t.dtype for n, t in kept.items()}
        assert (kept["large"].dtype, kept["small"].dtype, kept["ids"].dtype) == (
            torch.float32,
            torch.float16,
            torch.int64,
        )
        store.remove("aa")
        with pytest.raises(BrokenEntryError):
            store.read("aa")
        assert (store.has("aa"), store.num_bytes("aa")) == (False, 0)


def test_size_and_hit_rate_are_reported(config: Config, tmp_path: Path) -> None:
    first = {e.what: e for e in cached(config).of(CacheFilled)}
    assert (first["images"].num_entries, first["images"].num_found) == (NUM_IMAGES, 0)
    (tmp_path / "images" / "000.txt").write_text("another")
    (tmp_path / "images" / "001.txt").write_text("another")  # equal captions share an entry
    ran = cached(config)
    again = {e.what: e for e in ran.of(CacheFilled)}
    assert (again["images"].num_entries, again["images"].num_found) == (NUM_IMAGES, NUM_IMAGES)
    assert (again["captions"].num_entries, again["captions"].num_found) == (NUM_IMAGES, NUM_IMAGES - 1)
    latents, _ = stores(config)
    assert again["images"].num_bytes == sum(e.num_bytes for e in latents.entries())
    assert "Text cache: 4 of 5 entries found (80%), 1 encoded" in again["captions"].summary
    assert "text embeddings (2, " in ran.finished.message


def test_encoders_are_on_the_device_only_while_they_fill_the_caches(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text encoders that are not trained, and the VAE, leave the training device once their outputs are cached."""
    there: dict[str, set[tuple[str, ...]]] = {}

    def watch(name: str) -> None:
        plain = getattr(Encoders, name)

        def watched(self: Encoders, *arguments: Any) -> Any:
            there.setdefault(name, set()).add(on_device(placements[-1]))
            return plain(self, *arguments)

        monkeypatch.setattr(Encoders, name, watched)

    placements: list[Placement] = []
    plain_init = Placement.__init__

    def init(self: Placement, *arguments: Any, **options: Any) -> None:
        plain_init(self, *arguments, **options)
        placements.append(self)

    monkeypatch.setattr(Placement, "__init__", init)
    watch("latents")
    watch("captions")
    prepared = prepare(run_setup(laid_over(config, {"general": {"temp_device": "cpu:1"}})))
    try:
        assert there == {"latents": {("vae",)}, "captions": {("text_encoder",)}}
        assert on_device(prepared.model.placement) == ("unet",)
    finally:
        prepared.close()


def on_device(placement: Placement) -> tuple[str, ...]:
    """The parts on the training device."""
    return tuple(p for p in ("unet", "vae", "text_encoder") if placement.device_of(p).name == "cpu")
