"""The sharded tensors of a backup: written and read in rows, and old ones of torch read without running their code."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING
from torch.distributed.checkpoint.state_dict_saver import save

from modules.system.errors import DarkroomError
from tests.builders.hostile_files import named, planted, text
from trainer.run_folder.shards import Rows, key_of, read_whole, stored_in_shards, write_shards

WHOLE = torch.arange(20, dtype=torch.float32).reshape(5, 4)
STEP = torch.tensor(3.0)


def written(folder: Path, *, num_processes: int) -> Path:
    """Write a tensor in rows, as `torch.chunk` shares them, and one that is not sharded."""
    start = 0
    chunks = list(WHOLE.chunk(num_processes))
    for index in range(num_processes):
        own = chunks[index] if index < len(chunks) else WHOLE[:0]
        rows = {key_of("weights", "unet.a"): Rows(own, start, len(WHOLE))}
        whole = {key_of("optimizer", "unet.a|step"): STEP} if index == 0 else {}
        write_shards(folder, rows, whole, process=index)
        start += len(own)
    return folder


@pytest.mark.parametrize("num_processes", [1, 2, 3, 4, 7])
def test_rows_of_any_number_of_processes_are_read_by_any_other(tmp_path: Path, num_processes: int) -> None:
    folder = written(tmp_path, num_processes=num_processes)
    assert torch.equal(read_whole(folder, "weights")["unet.a"], WHOLE)
    assert torch.equal(read_whole(folder, "optimizer")["unet.a|step"], STEP)
    stored = stored_in_shards(folder, "weights")["unet.a"]
    assert (stored.shape, stored.dtype) == ((5, 4), torch.float32)
    for start in range(6):
        for end in range(start, 6):
            assert torch.equal(stored.rows(start, end), WHOLE[start:end])


def test_a_missing_part_is_an_error_and_not_chance(tmp_path: Path) -> None:
    folder = written(tmp_path, num_processes=3)
    next(iter(sorted((folder / "shards").iterdir()))).unlink()
    with pytest.raises(DarkroomError, match=r"unet\.a.* is not complete"):
        read_whole(folder, "weights")


@pytest.mark.parametrize("place", ["[0, 10**30]", "[-1, 5]", "[0]", "7", "[1e3, 5]", "[true, 5]", "{}", "[" * 90_000])
def test_rows_with_an_impossible_place_are_an_error(tmp_path: Path, place: str) -> None:
    from modules.formats.safetensors_io import write_safetensors

    (tmp_path / "shards").mkdir()
    metadata = {"rows": '{"weights/unet.a": ' + place.replace("10**30", str(10**30)) + "}"}
    write_safetensors(tmp_path / "shards" / "process-00000.safetensors", {"weights/unet.a": WHOLE}, metadata)
    with pytest.raises(DarkroomError, match=r"is not complete|cannot be read"):
        read_whole(tmp_path, "weights")


def written_by_torch(folder: Path) -> Path:
    """Write what an older version wrote, in the format of torch.distributed.checkpoint."""
    tensors = {"weights/unet.a": WHOLE, "weights/unet.b": torch.ones(2, dtype=torch.bfloat16)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save({**tensors, "optimizer/unet.a|step": STEP}, checkpoint_id=folder / "shards")
    return folder


def test_the_shards_of_an_older_version_are_read(tmp_path: Path) -> None:
    found = read_whole(written_by_torch(tmp_path), "weights")
    assert found.keys() == {"unet.a", "unet.b"}
    assert torch.equal(found["unet.a"], WHOLE)
    assert found["unet.b"].dtype == torch.bfloat16
    assert torch.equal(stored_in_shards(tmp_path, "weights")["unet.a"].rows(1, 3), WHOLE[1:3])
    assert torch.equal(read_whole(tmp_path, "optimizer")["unet.a|step"], STEP)


def test_the_shards_that_an_early_python_3_11_wrote_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian 12 has Python 3.11.2, which writes a member of an enum as a call of getattr."""
    monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", lambda self, _: (getattr, (type(self), self.name)))
    folder = written_by_torch(tmp_path)
    assert b"getattr" in (folder / "shards" / ".metadata").read_bytes()
    assert torch.equal(read_whole(folder, "weights")["unet.a"], WHOLE)


def test_the_backup_that_two_processes_of_an_older_version_wrote_is_read() -> None:
    folder = Path(__file__).parent / "fixtures" / "backup_of_two_processes"
    weights, state = read_whole(folder, "weights"), read_whole(folder, "optimizer")
    assert torch.equal(weights["unet.a"], WHOLE)
    assert torch.equal(weights["unet.conv"], torch.arange(84, dtype=torch.float32).reshape(7, 3, 2, 2))
    assert torch.equal(weights["unet.one"], torch.ones(1, 3))  # of the first process alone
    assert torch.equal(state["unet.a|step"], STEP)
    assert torch.equal(state["unet.a|exp"], WHOLE.to(torch.bfloat16))
    assert torch.equal(state["unet.b8"], torch.arange(10, dtype=torch.uint8))


WAYS = sorted(planted(Path("canary")))


@pytest.mark.parametrize("way", WAYS)
def test_the_metadata_of_an_older_version_runs_no_code(tmp_path: Path, way: str) -> None:
    canary = tmp_path / "canary"
    folder = written_by_torch(tmp_path / "backup")
    (folder / "shards" / ".metadata").write_bytes(b"\x80\x04" + planted(canary)[way] + b".")
    with pytest.raises(DarkroomError):
        read_whole(folder, "weights")
    assert not canary.exists()


@pytest.mark.parametrize("way", WAYS)
def test_the_tensors_of_an_older_version_run_no_code(tmp_path: Path, way: str) -> None:
    from tests.builders.hostile_files import zipped

    canary = tmp_path / "canary"
    folder = written_by_torch(tmp_path / "backup")
    program = zipped(b"\x80\x02" + planted(canary)[way] + b".")
    for file in (folder / "shards").glob("*.distcp"):
        file.write_bytes(program + bytes(20_000))
    with pytest.raises(DarkroomError):
        read_whole(folder, "weights")
    assert not canary.exists()


def test_the_metadata_of_an_older_version_leads_to_no_other_folder(tmp_path: Path) -> None:
    folder = written_by_torch(tmp_path / "backup")
    metadata = folder / "shards" / ".metadata"
    name = next((folder / "shards").glob("*.distcp")).name.encode()
    assert metadata.read_bytes().count(name) == 1
    metadata.write_bytes(metadata.read_bytes().replace(name, b"../" + name[3:]))
    with pytest.raises(DarkroomError, match="names a file outside"):
        read_whole(folder, "weights")


def test_no_bytes_of_an_older_version_are_unpickled(tmp_path: Path) -> None:
    """Values that are not tensors are unpickled by torch, whatever they name; our backups never had any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(
            {"weights/unet.a": WHOLE, "weights/unet.b": {"code": named("os.system") + text("x")}},
            checkpoint_id=tmp_path / "shards",
        )
    assert json.dumps(sorted(read_whole(tmp_path, "weights"))) == '["unet.a"]'
