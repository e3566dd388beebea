"""Files made to exhaust, confuse or take over the program: each is described in a sentence, and nothing of it runs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.families.kinds.identify import identify, identify_with_header, who_loads_file
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.formats import headers, pickle_header, pickle_machine
from modules.formats.checkpoint_header import read_checkpoint_header, read_values
from modules.formats.headers import UnreadableFileError, read_header
from modules.formats.pickle_header import read_pickle_header
from modules.formats.pickle_values import LEFTOVERS, TENSOR_NAMES, is_safe_name
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT
from modules.system.regular_files import read_json_object
from tests.builders import hostile_files as hostile
from tests.unit.test_kinds import model_shapes, write_header
from trainer.__main__ import main


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def refused(path: Path, content: bytes) -> UnreadableFileError:
    with pytest.raises(UnreadableFileError) as caught:
        read_checkpoint_header(written(path, content))
    assert identify(path).kind == "broken"
    return caught.value


# -- pickles ----------------------------------------------------------------------------------------------------------


def code_names(path: Path) -> list[str]:
    return list(hostile.planted(path))


@pytest.mark.parametrize("way", code_names(Path("canary")))
@pytest.mark.parametrize("place", ["zip", "legacy", "version", "keys", "raw", "damaged", "inner"])
def test_a_pickle_with_code_is_not_safe_to_load(way: str, place: str, tmp_path: Path) -> None:
    """Wherever the code is: in the object, in the small pickles around it, and before damage."""
    from modules.formats.stored_tensors import read_pickled_tensors

    canary = tmp_path / "canary"
    value = hostile.planted(canary)[way]
    program = hostile.state_dict(value)
    small = b"\x80\x02" + value + b"."
    content = {
        "zip": lambda: hostile.zipped(program),
        "legacy": lambda: hostile.legacy(program),
        "version": lambda: hostile.legacy(hostile.state_dict(), version=small + b"\x80\x02}."),
        "keys": lambda: hostile.legacy(hostile.state_dict(), keys=small),
        "raw": lambda: program,
        "damaged": lambda: hostile.zipped(program[:-2] + b"\xff"),
        "inner": lambda: hostile.zipped(hostile.state_dict(b"}" + hostile.text("a") + value + b"s")),
    }[place]()
    path = written(tmp_path / "m.ckpt", content)
    kind, loads = who_loads_file(path)
    if not way.startswith("PERSID"):
        assert "not safe to load" in kind.sentence
    assert kind.kind == "broken" or "code" in kind.facts
    assert all(x.complete is False for x in loads)
    with pytest.raises(DarkroomError):
        read_pickled_tensors(path)
    assert not canary.exists()


def test_nothing_that_a_pickle_names_is_imported(tmp_path: Path) -> None:
    (tmp_path / "canary_module.py").write_text("import pathlib; pathlib.Path(__file__).with_suffix('.ran').touch()")
    program = hostile.state_dict(hostile.named("canary_module.Thing") + b")R")
    path = written(tmp_path / "m.ckpt", hostile.zipped(program))
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from trainer.__main__ import main
main(["inspect", {str(path)!r}])
from modules.formats.stored_tensors import read_pickled_tensors
from modules.system.errors import DarkroomError
try:
    read_pickled_tensors({path!r}.__class__({str(path)!r}))
except DarkroomError as error:
    print(error)
assert "canary_module" not in sys.modules
""".replace(f"{path!r}.__class__", "__import__('pathlib').Path")
    done = subprocess.run([sys.executable, "-c", code], cwd=PROGRAM_ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.count("canary_module.Thing") >= 2
    assert not (tmp_path / "canary_module.ran").exists()


def test_a_checkpoint_with_code_names_it_and_no_program_loads_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    items = b"".join(hostile.text(name) + hostile.tensor() for name in model_shapes("sd1"))
    program = (
        b"\x80\x02}(" + items + hostile.text("x") + hostile.named("posix.system") + hostile.text("id") + b"\x85Ru."
    )
    path = written(tmp_path / "m.ckpt", hostile.zipped(program))
    assert main(["inspect", str(path)]) == 2
    said = capfd.readouterr().out
    assert "A Stable Diffusion 1.x checkpoint" in said
    assert "m.ckpt is not safe to load: it would call or create posix.system" in said
    assert " yes" not in said
    assert said.count("not safe to load") == 5  # the sentence, and four programs
    raw = written(tmp_path / "raw.pt", program)
    assert main(["inspect", str(raw)]) == 2
    safe = b"\x80\x02}(" + items + b"u."
    assert main(["inspect", str(written(tmp_path / "safe.ckpt", hostile.zipped(safe)))]) == 0


def test_torch_agrees_with_the_list_of_safe_names() -> None:
    """Every name that `inspect` calls safe is one that torch.load with weights_only accepts, or one we replace."""
    from _compat_pickle import NAME_MAPPING  # type: ignore[import-not-found]

    from torch._weights_only_unpickler import _get_allowed_globals

    def now(name: str) -> str:
        module, _, attribute = name.rpartition(".")
        if module == "__builtin__":
            module = "builtins"
        return ".".join(NAME_MAPPING.get((module, attribute), (module, attribute)))

    assert {now(name) for name in TENSOR_NAMES} <= _get_allowed_globals().keys()
    assert not TENSOR_NAMES & set(LEFTOVERS)


@pytest.mark.parametrize(
    "name", ["torch.load", "torch.hub.load", "numpy.load", "collections.OrderedDict.x", "torch", ""]
)
def test_a_prefix_is_not_enough(name: str) -> None:
    assert not is_safe_name(name)


def test_what_torch_saves_is_safe(tmp_path: Path) -> None:
    """All dtypes and containers, in every protocol, and the old format."""
    import torch

    from modules.formats.safetensors_io import CODES

    held = {f"t{i}": torch.zeros(2, dtype=d) for i, d in enumerate((*CODES, torch.uint16))}
    held |= {"p": torch.nn.Parameter(torch.zeros(3, 0)), "s": {1, 2}, "b": b"bytes", "z": 1j, "size": torch.Size([1])}
    held["scalar"] = torch.tensor(3.0)
    named = torch.nn.Parameter(torch.zeros(1))
    named.note = "an attribute"  # type: ignore[attr-defined]
    held["named"] = named
    for protocol in (2, 3, 4, 5):
        for is_zip in (True, False):
            path = tmp_path / f"{protocol}{is_zip}.ckpt"
            kept = held if is_zip else {n: v for n, v in held.items() if getattr(v, "dtype", None) != torch.uint16}
            kept = kept if is_zip else {n: v for n, v in kept.items() if "float8" not in str(getattr(v, "dtype", ""))}
            torch.save(kept, path, pickle_protocol=protocol, _use_new_zipfile_serialization=is_zip)
            header = read_checkpoint_header(path)
            tensors = {n: v for n, v in kept.items() if isinstance(v, torch.Tensor)}
            assert header.code == ()
            assert header.shapes == {n: tuple(v.shape) for n, v in tensors.items()}
            codes = CODES | {torch.uint16: "U16"}
            assert header.dtypes == {n: codes[v.dtype] for n, v in tensors.items()}


def test_dictionaries_that_contain_each_other_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """416 bytes used to take 80 seconds."""
    monkeypatch.setattr(pickle_header, "_MAX_VALUES", 1_000)
    error = refused(tmp_path / "m.ckpt", hostile.zipped(hostile.shared_dictionaries(6, 14)))
    assert error.defect == "limit"
    assert "more than 1,000 values" in str(error)


def test_a_dictionary_inside_itself_ends(tmp_path: Path) -> None:
    path = written(tmp_path / "m.ckpt", hostile.zipped(b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s."))
    assert identify(path).kind == "unknown"


@pytest.mark.parametrize("make", [hostile.zipped, hostile.legacy])
def test_instructions_are_counted(
    make: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickle_machine, "MAX_INSTRUCTIONS", 1_000)
    error = refused(tmp_path / "m.ckpt", make(b"\x80\x02" + b"N0" * 1_000 + b"N."))
    assert "more than 1,000 instructions" in str(error)


def test_code_is_reported_rather_than_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle_machine, "MAX_INSTRUCTIONS", 1_000)
    error = refused(tmp_path / "m.ckpt", hostile.zipped(b"\x80\x02cposix\nsystem\n" + b"N0" * 1_000 + b"N."))
    assert error.defect == "unsafe"
    assert "posix.system" in str(error)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_pickle_that_unpacks_to_too_much(compression: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle_header, "_MAX_PICKLE_BYTES", 10_000)
    error = refused(tmp_path / "m.ckpt", hostile.zipped(b"\x00" * 10_001, compression=compression))
    assert "a pickle of more than 10,000 bytes" in str(error)


def test_a_size_that_the_archive_understates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle_header, "_MAX_PICKLE_BYTES", 10_000)
    content = hostile.zipped(b"\x00" * 1_000_000, compression=zipfile.ZIP_DEFLATED)
    content = content.replace((1_000_000).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    assert refused(tmp_path / "m.ckpt", content).defect in ("limit", "damaged")


def test_compressions_without_a_bound_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four kilobytes of bzip2 can hold a gigabyte, and it is unpacked at once."""
    monkeypatch.setattr(zipfile, "_get_decompressor", lambda kind: pytest.fail("it was unpacked"))
    content = hostile.zipped(hostile.state_dict(), compression=zipfile.ZIP_BZIP2)
    assert refused(tmp_path / "m.ckpt", content).defect == "damaged"


def test_members_of_an_archive_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle_header, "_MAX_DIRECTORY_BYTES", 70_000)
    content = hostile.zip_of((f"archive/data/{i}", b"") for i in range(2_000))
    assert "more files than can be listed" in str(refused(tmp_path / "m.ckpt", content))
    assert identify(written(tmp_path / "n.ckpt", hostile.zipped(hostile.state_dict()))).kind == "unknown"


def test_two_pickles_in_an_archive_are_ambiguous(tmp_path: Path) -> None:
    harmless, other = hostile.state_dict(), hostile.state_dict(hostile.named("posix.system"))
    for name in ("other/data.pkl", "archive/DATA.PKL"):
        content = hostile.zip_of([("archive/data.pkl", harmless), (name, other)])
        assert refused(tmp_path / "m.ckpt", content).defect == "damaged"


def test_a_file_that_is_a_pickle_and_an_archive_is_what_torch_takes_it_for(tmp_path: Path) -> None:
    program = hostile.legacy(hostile.state_dict(hostile.named("posix.system") + b")R"))
    path = written(tmp_path / "m.ckpt", program + hostile.zipped(hostile.state_dict()))
    assert "posix.system" in identify(path).sentence


def test_torchscript_is_a_program(tmp_path: Path) -> None:
    content = hostile.zip_of([("archive/data.pkl", hostile.state_dict()), ("archive/constants.pkl", b"\x80\x02).")])
    assert "not safe to load" in identify(written(tmp_path / "m.ckpt", content)).sentence


@pytest.mark.parametrize(
    "value",
    [
        hostile.tensor(b"J\xff\xff\xff\xff\x85"),  # a negative size
        hostile.tensor(b"\x8b\x10\x00\x00\x00" + b"\x7f" * 16 + b"\x85"),  # one of 128 bits
        hostile.tensor(b"G\x7f\xf0\x00\x00\x00\x00\x00\x00\x85"),  # infinity
        hostile.tensor(b"N"),
        hostile.tensor(b"(" + b"K\x01" * 100 + b"t"),
        hostile.tensor(hostile.text("11")),
        hostile.tensor(key=hostile.shared_lists(60)),  # its text would have 2 ** 60 items
        hostile.named("torch._utils._rebuild_tensor_v2") + b")R",
        b"\x8b\xff\xff\xff\xffN",  # a number of a negative length
        b"X\xff\xff\xff\xff",
        b"\x8d" + b"\xff" * 8,
        b"h\x63",
        b"tttt",
        b"Lnot a number\n",
        b"\x97",
    ],
)
def test_impossible_values_of_a_pickle(value: bytes, tmp_path: Path) -> None:
    assert refused(tmp_path / "m.ckpt", hostile.zipped(hostile.state_dict(value))).defect == "damaged"


def test_long_keys_and_numbers_are_not_written_out(tmp_path: Path) -> None:
    """The text of a number of a million digits takes minutes, and a dotted name repeats the names around it."""
    number = b"\x8b\x00\x00\x10\x00" + b"\x7f" * 2**20
    path = written(tmp_path / "m.ckpt", hostile.zipped(hostile.state_dict(b"}" + number + b"Ns", number)))
    assert list(read_pickle_header(path).values) == []
    long = hostile.text("a" * 3_000)
    error = refused(path, hostile.zipped(hostile.state_dict(b"}" + long + b"}" + long + b"Nss")))
    assert "a name of more than 1,000 characters" in str(error)


def test_python_2_lists_of_pairs(tmp_path: Path) -> None:
    program = b"\x80\x02" + hostile.named("collections.OrderedDict")
    program += b"](](" + hostile.text("w") + hostile.tensor() + b"ee\x85R."
    path = written(tmp_path / "m.ckpt", hostile.zipped(program))
    assert read_checkpoint_header(path).shapes == {"w": (2,)}


# -- safetensors ------------------------------------------------------------------------------------------------------


def entry(shape: object = (2,), offsets: object = (0, 8), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": entry([-2])},
        {"a": entry([2.0])},
        {"a": entry([True, 2])},
        {"a": entry("2")},
        {"a": entry([float("nan")])},
        {"a": entry([float("inf")])},
        {"a": entry([2**64], [0, 2**66])},
        {"a": entry([10**4000] * 60)},
        {"a": entry([1] * 70)},
        {"a": entry([2], [8, 0])},
        {"a": entry([2], [-8, 0])},
        {"a": entry([2], [0, 8, 16])},
        {"a": entry([2], {"0": 0, "8": 8})},
        {"a": entry([2], [0, 10**400])},
        {"a": entry(), "b": entry([1], [4, 8])},  # overlap
        {"a": entry(), "b": entry()},
        {"a": entry([1], [4, 8])},  # bytes that belong to none
        {"a": entry([1], [0, 4])},
        {"a": entry(), "__metadata__": {"a": 1}},
        {"a": entry(), "__metadata__": {"a": ["x"]}},
        {"a": entry(), "__metadata__": "x"},
        {"a": entry(dtype=["F32"])},
        {"a": []},
        {"a": None},
    ],
)
def test_what_the_library_refuses_is_damaged(tensors: dict[str, object], tmp_path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    content = hostile.header_of(tensors, bytes(8))
    assert refused(tmp_path / "m.safetensors", content).defect == "damaged"
    with pytest.raises(SafetensorError), safe_open(tmp_path / "m.safetensors", "np"):
        pass


def test_what_the_library_reads_is_read(tmp_path: Path) -> None:
    from safetensors import safe_open

    tensors = {"b": entry([1], [8, 12]), "a": entry(), "empty": entry([0], [8, 8]), "__metadata__": {"x": "\U0001f600"}}
    path = written(tmp_path / "m.safetensors", hostile.header_of(tensors, bytes(12)))
    with safe_open(path, "np") as file:
        assert set(file.keys()) == read_header(path).tensors.keys() == {"a", "b", "empty"}
        assert file.metadata() == read_header(path).metadata


def test_names_given_twice(tmp_path: Path) -> None:
    one = json.dumps(entry()).encode()
    content = hostile.safetensors_of(b'{"a":%b,"a":%b}' % (one, one), bytes(8))
    assert read_header(written(tmp_path / "m.safetensors", content)).tensors.keys() == {"a"}
    content = hostile.safetensors_of(b'{"a":%b,"a":%b}' % (one, json.dumps(entry([1], [8, 12])).encode()), bytes(12))
    assert refused(tmp_path / "m.safetensors", content).defect == "damaged"


def test_tensors_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header of 1.2 million tensors used to take 23 seconds and a gigabyte."""
    monkeypatch.setattr(headers, "MAX_TENSORS", 100)
    error = refused(tmp_path / "m.safetensors", hostile.many_tensors(101))
    assert (error.defect, "101 tensors, more than 100" in str(error)) == ("limit", True)
    assert len(read_header(written(tmp_path / "n.safetensors", hostile.many_tensors(100))).tensors) == 100


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":[' + b"[]," * 2_000 + b"[]]}",
        b'{"a":[' + b'"",' * 2_000 + b'""]}',
        b'{"a":[' + b"1," * 2_000 + b"1]}",
        b'{"a":' * 2_000,
        b"{" + b'"a":1,' * 2_000 + b'"a":1}',
        b'{"a":"' + b"[]," * 2_000,  # a text without an end
    ],
)
def test_values_are_counted_before_they_are_parsed(
    header: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "_MAX_ELEMENTS", 500)
    monkeypatch.setattr(headers.json, "loads", lambda text: pytest.fail("it was parsed"))
    assert refused(tmp_path / "m.safetensors", hostile.safetensors_of(header)).defect == "limit"


def test_long_metadata_of_real_files_is_read_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tags of a data set contain as many commas as the header of any model; and an image is a long text."""
    monkeypatch.setattr(headers, "_MAX_ELEMENTS", 500)
    tags = json.dumps({"folder": {f'tag {i}, "quoted" \\ [x]': i for i in range(2_000)}})
    image = "data:image/jpeg;base64," + "A" * 3_000_000
    metadata = {"ss_tag_frequency": tags, "modelspec.thumbnail": image}
    path = write_header(tmp_path / "m.safetensors", {"a": (2,)}, metadata=metadata)
    assert read_header(path).metadata == metadata


def test_the_size_of_a_header_is_limited_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write((50_000_000).to_bytes(8, "little") + b"{")
        file.truncate(60_000_000)
    with pytest.raises(UnreadableFileError, match="50,000,000 bytes, more than 32,000,000"):
        read_header(path)
    monkeypatch.setattr(headers, "_MAX_HEADER_BYTES", 4_000)
    for text, num_chars in (("\U0001f600", 1_100), (r"\ud83d\ude00", 1_100), ("\u5973", 2_100), (r"\u5973", 2_100)):
        header = ('{"__metadata__":{"a":"' + "a" * num_chars + text + '"}}').encode()
        assert "bytes of memory, more than 4,000" in str(refused(path, hostile.safetensors_of(header)))
    for text in ("\u5973" * 1_000, r"\\ud83d" * 400, "é" + "a" * 3_000):  # three bytes become two; an escaped escape
        header = ('{"__metadata__":{"a":"' + text + '"}}').encode()
        assert read_header(written(path, hostile.safetensors_of(header))).metadata == {"a": text.replace("\\\\", "\\")}


def test_names_and_output_are_short(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    error = refused(tmp_path / "m.safetensors", hostile.header_of({"a" * 2_000: hostile.EMPTY}))
    assert "the name of a tensor" in str(error)
    metadata = {f"\x1b[31m\n{i}" * 100: "\x07x " * 1_000 for i in range(600)}
    path = write_header(tmp_path / "n.safetensors", {"\x1b[2J\r\n" * 20: (2,)}, metadata=metadata)
    assert main(["inspect", str(path)]) == 0
    said = capfd.readouterr().out
    assert len(said) < 200_000
    assert "and 100 more" in said
    assert all(c.isprintable() or c == "\n" for c in said)
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["metadata"] == metadata


# -- files and folders ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="only on systems with named pipes")
def test_pipes_and_devices_do_not_block(tmp_path: Path) -> None:
    """A test that blocks is ended by its timeout."""
    from modules.data.captions.sources import CaptionOrigin, read_captions

    os.mkfifo(tmp_path / "m.safetensors")
    (tmp_path / "d.safetensors").symlink_to("/dev/zero")
    for name in ("m.safetensors", "d.safetensors"):
        assert "a pipe or a device, not a file" in identify(tmp_path / name).sentence
    path = write_header(tmp_path / "n.safetensors", model_shapes("sd1"))
    os.mkfifo(tmp_path / "n.yaml")
    assert identify(path).model == "sd1"
    os.mkfifo(tmp_path / "model_index.json")
    assert identify(tmp_path).kind == "unknown"
    os.mkfifo(tmp_path / "image.txt")
    assert read_captions(tmp_path / "image.png", CaptionOrigin()).texts == ()


@pytest.mark.parametrize(
    "content", [None, b"", b"[1]", b"\xff\xfe\x00", b'{"a": 1', b"[" * 100_000, b'{"a": ' + b"1" * 200 + b"}"]
)
def test_what_is_not_a_small_object_of_json_is_none(content: bytes | None, tmp_path: Path) -> None:
    """The marker of a launch with many brackets ended the search for an interrupted run."""
    if content is not None:
        (tmp_path / "a.json").write_bytes(content)
    assert read_json_object(tmp_path / "a.json", 200_000 if content and content[:1] == b"[" else 100) is None
    (tmp_path / "b.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')  # as editors on Windows write it
    assert read_json_object(tmp_path / "b.json", 100) == {"a": 1}


def test_a_folder_with_the_name_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").mkdir()
    assert "not a model folder" in identify(tmp_path / "m.safetensors").sentence


@pytest.mark.parametrize("text", [b"\n", b"ztsnr", b" ", b"parameterization", b"a:\n", b"ztsnr: \n"])
def test_sidecars_take_linear_time(text: bytes, tmp_path: Path) -> None:
    """Two hundred kilobytes of empty lines used to take minutes: a test that blocks is ended by its timeout."""
    path = write_header(tmp_path / "m.safetensors", model_shapes("sd1"))
    path.with_suffix(".yaml").write_bytes((text * 200_000)[:199_000])
    assert identify(path).prediction == "epsilon"


def test_a_sidecar_of_any_size(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.safetensors", model_shapes("sd1"))
    path.with_suffix(".yaml").write_bytes(b"parameterization: v\n" * 20_000)
    assert identify(path).prediction == "epsilon"
    path.with_suffix(".yaml").write_bytes(b"x:\n  parameterization: v\n  use_zero_snr: true\n")
    assert (identify(path).prediction, identify(path).zero_snr) == ("v_prediction", True)


@pytest.mark.parametrize("value", [10**9, 10**30, float("inf"), float("nan"), "9" * 5_000, [10**9] * 20, {}, None])
def test_configs_in_metadata_that_describe_any_number_of_layers(value: object, tmp_path: Path) -> None:
    unet = {
        "block_out_channels": [1] * 20,
        "down_block_types": ["CrossAttn"] * 20,
        "up_block_types": ["CrossAttn"] * 20,
        "layers_per_block": value,
        "transformer_layers_per_block": value,
    }
    configs = {p: {**unet, "num_hidden_layers": value} for p in ("unet", "vae", "text_encoder", "text_encoder_2")}
    for part in ({"unet": unet}, {"vae": configs["vae"]}, {"text_encoder": configs["text_encoder"]}, configs):
        for shapes in (model_shapes("sd1"), {"lora_te_text_model_encoder_layers_0_mlp_fc1.lora_down.weight": (4, 8)}):
            metadata = {CONFIGS_KEY: json.dumps(part), "ss_base_model_version": "sd_v1"}
            kind, _ = who_loads_file(write_header(tmp_path / "m.safetensors", shapes, metadata=metadata))
            assert kind.model == "sd1"


@pytest.mark.parametrize(
    "index",
    [
        b'{"_class_name": ["a"]}',
        b'{"_class_name": {"a": 1}}',
        b'{"_class_name": "' + b"a" * 100_000 + b'"}',
        b'{"_class_name": "StableDiffusionPipeline", "unet": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"_class_name": ' + b"9" * 5_000 + b"}",
        b"[" * 100_000,
        b"\xff\xfe",
        b"null",
    ],
)
def test_the_index_of_a_folder(index: bytes, tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_bytes(index)
    kind, _ = who_loads_file(tmp_path)
    assert len(json.dumps(kind.to_json())) < 2_000


@pytest.mark.parametrize("value", ["[1]", "{}", '"x"', "null", "1e999", "[[]]", "true", "9" * 5_000])
def test_the_configs_of_a_folder(value: str, tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    for part, name in (("unet", "config.json"), ("scheduler", "scheduler_config.json")):
        (tmp_path / part).mkdir()
        keys = ("in_channels", "cross_attention_dim", "use_linear_projection", "prediction_type")
        text = ", ".join(f'"{key}": {value}' for key in (*keys, "rescale_betas_zero_snr"))
        (tmp_path / part / name).write_text(f"{{{text}}}")
    assert identify(tmp_path).kind == "diffusers_folder"


def test_large_configs_and_folders_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from modules.families.kinds import folder

    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}' + " " * 1_000_000)
    found = identify(tmp_path)
    assert (found.kind, found.facts["defect"]) == ("broken", "limit")
    assert "model_index.json was not read: it has more than 1,000,000 bytes" in found.sentence
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    (tmp_path / "unet").mkdir()
    for i in range(12):
        (tmp_path / "unet" / f"{i}.txt").touch()
    monkeypatch.setattr(folder, "_MAX_FILES", 10)
    assert "unet was not read: it contains more than 10 files" in identify(tmp_path).sentence


def test_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.safetensors", {"a": (2,)})
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        assert identify(path).kind == "broken"
    _, header = identify_with_header(written(path, whole))
    assert header is not None
    path.write_bytes(b"")  # and one that shrinks before its values are read
    values = read_values(header, "a")
    assert values is None or values.size == 0


@pytest.mark.parametrize("change", ["gone", "compressed", "short", "huge"])
def test_values_of_hostile_pickles(change: str, tmp_path: Path) -> None:
    shape = b"J\xff\xff\xff\x7f\x85" if change == "huge" else b"K\x02\x85"
    members = [("archive/data.pkl", b"\x80\x02}" + hostile.text("w") + hostile.tensor(shape) + b"s.")]
    if change != "gone":
        members.append(("archive/data/0", b"\x00" * (3 if change == "short" else 8)))
    compression = zipfile.ZIP_DEFLATED if change == "compressed" else zipfile.ZIP_STORED
    path = written(tmp_path / "m.ckpt", hostile.zip_of(members, compression=compression))
    assert read_values(read_checkpoint_header(path), "w") is None


def test_deep_names_of_an_archive(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/" * 20_000 + "data.pkl", hostile.state_dict())
    assert identify(written(tmp_path / "m.ckpt", buffer.getvalue())).sentence


# -- faults that changed files (tests/builders/fuzzing.py) have shown --------------------------------------------------


@pytest.mark.parametrize("text", ["[" * 100_000, "null", "[]", '{"a": 1}'])
def test_files_of_a_folder_in_words(text: str, tmp_path: Path) -> None:
    from modules.formats.diffusers_folder import read_json
    from modules.rewards.user_code_file import approved_hashes
    from trainer.run.checkpoint import read_state

    for name in ("state.json", "approvals.json"):
        (tmp_path / name).write_text(text)
    if text != '{"a": 1}':
        with pytest.raises(DarkroomError):
            read_json(tmp_path, "state.json")
        assert approved_hashes(tmp_path / "approvals.json") == frozenset()
    with pytest.raises(DarkroomError, match="cannot be resumed"):
        read_state(tmp_path)


@pytest.mark.parametrize(
    ("vocabulary", "merges"),
    [
        ('["a"]', "a b"),
        ('{"a": "x", "b": 1, "ab": 2}', "a b"),
        ('{"a": -1, "b": 1, "ab": 2}', "a b"),
        ('{"a": 0, "b": 1}', "a b"),
        ('{"a": 0}', "a b"),
    ],
)
def test_a_damaged_vocabulary(vocabulary: str, merges: str, tmp_path: Path) -> None:
    from modules.families.parts.clip_tokens import load_clip_tokenizer

    (tmp_path / "vocab.json").write_text(vocabulary)
    (tmp_path / "merges.txt").write_text(merges)
    with pytest.raises(DarkroomError, match="is damaged"):
        load_clip_tokenizer(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"pad_token": {"a": 1}}', '{"pad_token": {"content": {"a": [1]}}}'])
def test_odd_settings_of_a_tokenizer(text: str, tmp_path: Path) -> None:
    from modules.families.parts.clip_tokens import load_clip_tokenizer

    (tmp_path / "tokenizer_config.json").write_text(text)
    (tmp_path / "special_tokens_map.json").write_text(text)
    tokenizer = load_clip_tokenizer(tmp_path)
    assert tokenizer.pad_id == tokenizer.end_id


def test_a_thousand_damaged_files_of_secrets(tmp_path: Path) -> None:
    from modules.system.secrets_file import load_secrets

    for number in ("", *range(2, 1000)):
        (tmp_path / f"secrets.json.bad{number}").touch()
    (tmp_path / "secrets.json").write_text("{")
    assert "not a JSON object" in load_secrets(tmp_path / "secrets.json").problems[0].message


# -- images -----------------------------------------------------------------------------------------------------------


PIXELS = b"\x00\x00\x00\x01IDATx" + zlib.crc32(b"IDATx").to_bytes(4, "big")


def png(width_px: int, height_px: int, chunks: bytes = b"") -> bytes:
    """A PNG of that size with one byte of pixels."""
    header = b"IHDR" + width_px.to_bytes(4, "big") + height_px.to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"
    return b"\x89PNG\r\n\x1a\n" + b"\x00\x00\x00\x0d" + header + zlib.crc32(header).to_bytes(4, "big") + PIXELS + chunks


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (png(60_000, 60_000), "more than 178,956,970 pixels"),
        (png(0, 5), ""),
        (png(2**31, 2**31), ""),
        (png(50, 50), ""),
        (png(50, 50, (b"\x00" * 4 + b"abcd" + bytes(4)) * 200_001), "more than 200,000 chunks"),
        (png(50, 50)[:20], "cannot be read"),
        (b"text", "not a readable image"),
        (b"GIF89a" + b"\xff" * 8, ""),
        (b"II*\x00\x08\x00\x00\x00" + b"\xff" * 40, ""),
    ],
)
def test_images_that_are_bombs_or_damaged(content: bytes, words: str, tmp_path: Path) -> None:
    """Each is skipped with a reason, or, where its header is intact, rejected when it is decoded."""
    from modules.data.buckets import ResizeCrop, Size
    from modules.data.captions.sources import CaptionOrigin
    from modules.data.images import BrokenImageError
    from modules.data.scan import scan_folder
    from modules.data.transforms.apply import load_pixels
    from modules.data.transforms.recipe import plain_recipe
    from ui.widgets.thumbnails import load_covering, load_fitted

    path = written(tmp_path / "i.png", content)
    found = scan_folder(tmp_path, include_subfolders=False, captions=CaptionOrigin())
    assert len(found.images) + len(found.skipped) == 1
    assert words in "".join(s.reason for s in found.skipped)
    for read in (
        lambda: load_pixels(path, plain_recipe(ResizeCrop(Size(16, 16), Size(16, 16), 0, 0))),
        lambda: load_covering(path, 16, 16),
        lambda: load_fitted(path, 16, 16),
    ):
        with pytest.raises(BrokenImageError):
            read()
