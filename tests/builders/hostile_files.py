"""Files made to exhaust, confuse or take over a program that reads them. Small ones to test with, huge ones by hand:

python -m tests.builders.hostile_files FOLDER     write all of them, the huge ones included
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
SMALL_PICKLES = b"\x80\x02M\xe9\x03.\x80\x02}q\x00."
"""The version and the system info of the format before PyTorch 1.6."""


def safetensors_of(header: bytes, data: bytes = b"") -> bytes:
    """Return a safetensors file with these bytes as its header."""
    return len(header).to_bytes(8, "little") + header + data


def header_of(tensors: Mapping[str, Any], data: bytes = b"") -> bytes:
    """Return a safetensors file with this header."""
    return safetensors_of(json.dumps(tensors).encode(), data)


def many_tensors(count: int) -> bytes:
    """Return a safetensors file with this many empty tensors."""
    entry = '"t%07d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return safetensors_of(("{" + ",".join(entry % i for i in range(count)) + "}").encode())


def zipped(program: bytes, *, name: str = "archive/data.pkl", compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a checkpoint of today's format around a pickle."""
    return zip_of([(name, program), ("archive/version", b"3\n")], compression=compression)


def zip_of(members: Iterable[tuple[str, bytes]], *, compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip archive of these members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for member, content in members:
            archive.writestr(member, content)
    return buffer.getvalue()


def legacy(program: bytes, *, version: bytes = SMALL_PICKLES, keys: bytes = b"\x80\x02]q\x00.") -> bytes:
    """Return a checkpoint of the format before PyTorch 1.6 around a pickle."""
    return LEGACY_MAGIC + version + program + keys


def text(word: str) -> bytes:
    """Return the instruction that pushes a string."""
    raw = word.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def named(name: str) -> bytes:
    """Return the instruction that pushes a function or class."""
    module, _, attribute = name.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def tensor(shape: bytes = b"K\x02\x85", *, storage: str = "torch.FloatStorage", key: bytes = b"") -> bytes:
    """Return the instructions that push one tensor, as torch.save writes them."""
    place = b"(" + text("storage") + named(storage) + (key or text("0")) + text("cpu") + b"K\x02tQ"
    hooks = named("collections.OrderedDict") + b")R"
    return named("torch._utils._rebuild_tensor_v2") + b"(" + place + b"K\x00" + shape + b"K\x01\x85\x89" + hooks + b"tR"


def state_dict(*extra: bytes) -> bytes:
    """Return a pickle of a dictionary with one tensor; each of `extra` pushes one more value."""
    values = [tensor(), *extra]
    items = b"".join(text(f"value{i}") + value for i, value in enumerate(values))
    return b"\x80\x02}(" + items + b"u."


def shared_dictionaries(levels: int, width: int) -> bytes:
    """Return a pickle of dictionaries in which each key names the same inner dictionary: width ** levels leaves."""
    program = b"\x80\x02K\x01q\x00"
    for level in range(levels):
        items = b"".join(text(str(k)) + b"h" + bytes([level]) for k in range(width))
        program += b"}(" + items + b"uq" + bytes([level + 1])
    return program + b"."


def shared_lists(levels: int) -> bytes:
    """Return the instructions that push a list whose text would have 2 ** levels items."""
    program = b"]q\x00"
    for level in range(levels):
        program += b"](h" + bytes([level]) + b"h" + bytes([level]) + b"eq" + bytes([level + 1])
    return program


class Reduced:
    """An object whose pickle calls a function by name."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


def planted(canary: Path) -> dict[str, bytes]:
    """Return values that would write the file `canary` if they were unpickled, by the way in which they are called."""
    here = str(canary)
    call = text(here) + b"\x85"
    return {
        "REDUCE": named("posix.mkdir") + call + b"R",
        "os.system": pickle.dumps(Reduced(os.system, f"mkdir {here}"), protocol=2)[2:-1],
        "builtins.eval": named("builtins.eval") + text(f"__import__('os').mkdir({here!r})") + b"\x85R",
        "builtins.exec": named("builtins.exec") + text(f"__import__('os').mkdir({here!r})") + b"\x85R",
        "NEWOBJ": named("pathlib.Path") + call + b"\x81",
        "NEWOBJ_EX": named("pathlib.Path") + call + b"}\x92",
        "INST": b"(" + text(here) + b"iposix\nmkdir\n",
        "OBJ": b"(" + named("posix.mkdir") + text(here) + b"o",
        "BUILD": named("pathlib.Path") + b")\x81}" + text("x") + named("posix.mkdir") + b"sb",
        "STACK_GLOBAL": text("posix") + text("mkdir") + b"\x93" + call + b"R",
        "STACK_GLOBAL from the memo": text("mkdir") + b"q\x64" + b"0" + text("posix") + b"h\x64\x93" + call + b"R",
        "STACK_GLOBAL of a computed name": named("_codecs.encode") + text("posix") + b"\x85R" + text("mkdir") + b"\x93",
        "STACK_GLOBAL by a dotted name": text("torch") + text("serialization.os.mkdir") + b"\x93" + call + b"R",
        "only named": named("posix.mkdir"),
        "torch.load": named("torch.serialization.load") + call + b"R",
        "torch.hub": named("torch.hub.load") + call + b"R",
        "torch.jit": named("torch.jit.load") + call + b"R",
        "torch.storage": named("torch.storage._load_from_bytes") + call + b"R",
        "torch._dynamo": named("torch._dynamo.guards.eval") + call + b"R",
        "numpy": named("numpy.load") + call + b"R",
        "numpy.testing": named("numpy.testing._private.utils.runstring") + call + b"R",
        "lightning": named("pytorch_lightning.utilities.cloud_io.load") + call + b"R",
        "collections": named("collections.OrderedDict.fromkeys") + call + b"R",
        "EXT1": b"\x82\x05",
        "EXT2": b"\x83\x05\x01",
        "EXT4": b"\x84\x05\x01\x00\x00",
        "PERSID": b"Pposix.mkdir\n",
        "BINPERSID of a function": named("posix.mkdir") + b"Q",
        "BINPERSID of a called function": named("posix.mkdir") + call + b"RQ",
        "storage by a function": tensor(storage="posix.mkdir"),
    }


def by_name() -> dict[str, Callable[[], bytes]]:
    """Return the huge files by name, each made when it is called."""
    deep = b'{"a":' * 100_000
    return {
        "nested-shared.ckpt": lambda: zipped(shared_dictionaries(6, 14)),
        "shared-list-as-key.ckpt": lambda: zipped(state_dict(shared_lists(40), tensor(key=b"h\x28"))),
        "opcodes.ckpt": lambda: zipped(b"\x80\x02" + b"N0" * 50_000_000 + b"N.", compression=zipfile.ZIP_DEFLATED),
        "opcodes-legacy.ckpt": lambda: legacy(b"\x80\x02" + b"N0" * 10_000_000 + b"N."),
        "stack.ckpt": lambda: zipped(b"\x80\x02" + b"}" * 15_000_000 + b".", compression=zipfile.ZIP_DEFLATED),
        "memo.ckpt": lambda: zipped(b"\x80\x04" + b"}\x94" * 7_000_000 + b".", compression=zipfile.ZIP_DEFLATED),
        "strings.ckpt": lambda: zipped(b"\x80\x02(" + text("\U0001f600abc") * 700_000 + b"t."),
        "long-string.ckpt": lambda: zipped(b"\x80\x02" + text("\U0001f600" + "a" * 15_000_000) + b"."),
        "long-number.ckpt": lambda: zipped(
            b"\x80\x02}(\x8b" + struct.pack("<i", 9_000_000) + b"\x7f" * 9_000_000 + b"Nu."
        ),
        "number-keys.ckpt": lambda: zipped(
            b"\x80\x02\x8b" + struct.pack("<i", 1700) + b"\x7f" * 1700 + b"q\x000}(" + b"h\x00N" * 150_000 + b"u."
        ),
        "no-newline.ckpt": lambda: legacy(b"c" + b"a" * 60_000_000),
        "zip-bomb.ckpt": lambda: zipped(b"\x00" * 1_000_000_000, compression=zipfile.ZIP_DEFLATED),
        "bzip2-bomb.ckpt": lambda: zipped(b"\x00" * 300_000_000, compression=zipfile.ZIP_BZIP2),
        "members.ckpt": lambda: zip_of((f"archive/data/{i}", b"") for i in range(300_000)),
        "tensors.ckpt": lambda: zipped(
            b"\x80\x02}(" + b"".join(text(f"name{i}") + tensor() for i in range(60_000)) + b"u."
        ),
        "header-1200000.safetensors": lambda: many_tensors(1_200_000),
        "header-29000.safetensors": lambda: many_tensors(29_000),
        "header-deep.safetensors": lambda: safetensors_of(deep),
        "header-lists.safetensors": lambda: safetensors_of(b'{"a":[' + b"[]," * 20_000_000 + b"[]]}"),
        "header-texts.safetensors": lambda: safetensors_of(b'{"a":[' + b'"",' * 12_000_000 + b'""]}'),
        "header-long-numbers.safetensors": lambda: safetensors_of(
            b'{"a":{"dtype":"F32","data_offsets":[0,0],"shape":[' + b",".join([b"9" * 4200] * 7_400) + b"]}}"
        ),
        "header-million-digits.safetensors": lambda: safetensors_of(
            b'{"a":{"dtype":"F32","data_offsets":[0,0],"shape":[' + b"9" * 1_000_000 + b"]}}"
        ),
        "metadata-31MB.safetensors": lambda: header_of({"__metadata__": {"ss_tag_frequency": "a b, " * 6_300_000}}),
        "metadata-emoji.safetensors": lambda: header_of({"__metadata__": {"a": "\U0001f600" + "a b, " * 6_300_000}}),
        "metadata-90MB.safetensors": lambda: header_of({"__metadata__": {"a": "a" * 90_000_000}}),
        "metadata-keys.safetensors": lambda: header_of({"__metadata__": {f"key{i}": "a" for i in range(240_000)}}),
        "metadata-configs.safetensors": lambda: header_of(
            {
                "__metadata__": {"darkroom_part_configs": '{"unet": [' + "[]," * 10_000_000 + "[]]}"},
                "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k.lora_down.weight": EMPTY
                | {"shape": [0, 768]},
            }
        ),
        "names.safetensors": lambda: header_of({f"{i}{'lora.' * 1_500_000}lora_up.weight": EMPTY for i in range(4)}),
    }


def write_all(folder: Path) -> None:
    """Write every huge file, and the folders, pipes and sidecars that are hostile."""
    for name, made in by_name().items():
        (folder / name).write_bytes(made())
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "folder.safetensors").mkdir()
    (folder / "device.safetensors").symlink_to("/dev/zero")
    for name, content in (
        ("index-deep", b"[" * 100_000_000),
        ("index-huge", b'{"_class_name": "' + b"a" * 300_000_000 + b'"}'),
        ("index-lists", b'{"_class_name": [' + b"[]," * 60_000_000 + b"[]]}"),
    ):
        (folder / name).mkdir()
        (folder / name / "model_index.json").write_bytes(content)
    many = folder / "many-files" / "unet"
    many.mkdir(parents=True)
    (many.parent / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    for i in range(300_000):
        (many / f"{i}.txt").touch()


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
