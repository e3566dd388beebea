"""A colour profile as small as it can be: three primaries and one gamma."""

from __future__ import annotations

import struct


def rgb_profile(primaries_xyz: tuple[tuple[float, float, float], ...], gamma: float) -> bytes:
    """Return an ICC profile (version 2) of the primaries of red, green and blue, relative to D50, and a gamma."""
    white = tuple(sum(p[axis] for p in primaries_xyz) for axis in range(3))
    tags = {b"wtpt": _xyz(*white), b"cprt": b"text\0\0\0\0none\0", b"desc": _description(b"test")}
    for name, primary in zip((b"r", b"g", b"b"), primaries_xyz, strict=True):
        tags[name + b"XYZ"] = _xyz(*primary)
        tags[name + b"TRC"] = struct.pack(">4sIIH", b"curv", 0, 1, round(gamma * 256))
    table, content = b"", b""
    start = 128 + 4 + 12 * len(tags)
    for name, data in tags.items():
        padded = data + bytes(-len(data) % 4)
        table += struct.pack(">4sII", name, start + len(content), len(data))
        content += padded
    body = struct.pack(">I", len(tags)) + table + content
    header = struct.pack(
        ">I4sI4s4s4s12s4s", 128 + len(body), b"none", 0x02100000, b"mntr", b"RGB ", b"XYZ ", bytes(12), b"acsp"
    )
    d50 = struct.pack(">3i", 63190, 65536, 54061)
    return header + bytes(68 - len(header)) + d50 + bytes(128 - 80) + body


def _xyz(x: float, y: float, z: float) -> bytes:
    return b"XYZ \0\0\0\0" + struct.pack(">3i", *(round(v * 65536) for v in (x, y, z)))


def _description(text: bytes) -> bytes:
    return struct.pack(">4sII", b"desc", 0, len(text) + 1) + text + bytes(1 + 4 + 4 + 2 + 1 + 67)


# The primaries of Adobe RGB (1998), adapted to D50.
WIDE_GAMUT = rgb_profile(((0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457)), 2.2)
