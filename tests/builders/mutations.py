"""Random changes of valid files that keep most of their structure: what damage, errors and attacks look like."""

from __future__ import annotations

import io
import json
import random
import warnings
import zipfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

Mutate = Callable[[bytes, random.Random], bytes]

_LENGTHS = (0, 1, 7, 8, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
# JSON has no numbers beyond floats and no NaN, but Python reads and writes both.
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 1.5, -0.0, 10**20, -(10**30), 2**63, 10**400, float("inf"), float("nan")),
    *("", "x", "0", "true", "nan", "a" * 5_000, "\ud800", "\U0001f600", "\x00", "../..", "a.b.c", "\n", "é"),
    *([], {}, [[]], [None], {"": None}, [0] * 100, {"a": {"b": {"c": 1}}}),
)


def of_bytes(tokens: Sequence[bytes] = ()) -> Mutate:
    """Return a mutation that flips, cuts, repeats and splices bytes, and inserts some of the tokens."""

    def mutate(content: bytes, rng: random.Random) -> bytes:
        data = bytearray(content)
        for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
            _change(data, rng, tokens)
        return bytes(data)

    return mutate


def _change(data: bytearray, rng: random.Random, tokens: Sequence[bytes]) -> None:
    place = rng.randrange(len(data) + 1)
    length = min(len(data) - place, rng.choice((1, 2, 4, 8, 16, 64, 256)))
    piece = bytes(data[place : place + length])
    match rng.randrange(8):
        case 0 if piece:
            data[place] ^= 1 << rng.randrange(8)
        case 1 if piece:
            data[place] = rng.randrange(256)
        case 2:
            del data[place:]
        case 3:
            del data[place : place + length]
        case 4:
            data[place:place] = piece * rng.choice((1, 2, 10, 100))
        case 5:
            there = rng.randrange(len(data) + 1)
            data[there : there + length] = piece
        case 6:
            size = rng.choice((1, 2, 4, 8))
            value = (rng.choice(_LENGTHS) % 256**size).to_bytes(size, rng.choice(("little", "big")))
            data[place : place + size] = value
        case _:
            token = rng.choice(tokens) if tokens else bytes([rng.randrange(256)])
            data[place : place + rng.choice((0, len(token)))] = token


def of_json(tokens: Sequence[Any] = ()) -> Mutate:
    """Return a mutation that replaces, removes, copies and moves values and keys of JSON; one in four is of bytes."""
    of_text = of_bytes([b"[", b"]", b"{", b"}", b'"', b"\\u", b"NaN", b"1e999", b"[" * 2_000, b"9" * 5_000])

    def mutate(content: bytes, rng: random.Random) -> bytes:
        if rng.randrange(4) == 0:
            return of_text(content, rng)
        tree = json.loads(content)
        for _ in range(rng.choice((1, 1, 2, 3, 6))):
            tree = _change_tree(tree, rng, (*_VALUES, *tokens))
        return json.dumps(tree, indent=rng.choice((None, 1))).encode()

    return mutate


def without_some(node: Any, rng: random.Random, share: float) -> Any:
    """Return a tree without a share of its keys, at any depth."""
    if isinstance(node, list):
        return [without_some(item, rng, share) for item in node]
    if not isinstance(node, dict):
        return node
    return {key: without_some(value, rng, share) for key, value in node.items() if rng.random() >= share}


def _change_tree(tree: Any, rng: random.Random, values: Sequence[Any]) -> Any:
    places = list(_places(tree))
    if not places or rng.randrange(50) == 0:
        return deepcopy(rng.choice(values))
    holder, key = rng.choice(places)
    other, there = rng.choice(places)
    match rng.randrange(6):
        case 0 | 1:
            holder[key] = deepcopy(rng.choice(values))
        case 2:
            holder[key] = json.loads(json.dumps(other[there]))
        case 3:
            del holder[key]
        case 4 if isinstance(holder, dict):
            name = there if isinstance(there, str) else rng.choice(("", "x", "a" * 2_000, "\ud800"))
            holder[name] = holder.pop(key)
        case _:
            holder[key] = [holder[key]]
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found, waiting = [], [tree]
    while waiting:
        here = waiting.pop()
        keys = list(here) if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else ()
        found += [(here, key) for key in keys]
        waiting += [here[key] for key in keys]
    return found


def of_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Return a safetensors file with a changed header, of the right length; one in four is changed in its bytes."""
    if rng.randrange(4) == 0:
        return of_bytes()(content, rng)
    length = int.from_bytes(content[:8], "little")
    names = ("__metadata__", "dtype", "shape", "data_offsets", "F16", "BF16", "F8_E4M3", "???", [0, 0], [2, 2])
    header = of_json(names)(content[8 : 8 + length], rng)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def of_zip(inner: Mutate) -> Mutate:
    """Return a mutation of one member of a zip archive; one in four is of the archive's bytes."""
    of_archive = of_bytes([b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"data.pkl"])

    def mutate(content: bytes, rng: random.Random) -> bytes:
        if rng.randrange(4) == 0:
            return of_archive(content, rng)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
        index = 0 if rng.randrange(4) else rng.randrange(len(members))
        name, data = members[index]
        members[index] = (name, inner(data, rng))
        if rng.randrange(20) == 0:
            members.append(rng.choice(members))
        buffer = io.BytesIO()
        compression = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w", compression) as archive:
            for name, data in members:  # two of one name are on purpose
                archive.writestr(zipfile.ZipInfo(name), data, compression)
        return buffer.getvalue()

    return mutate
