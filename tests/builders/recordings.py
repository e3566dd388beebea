"""The recorded passes of the tests' models, which take minutes to trace: `python -m tests.builders.recordings`.

The command packs what the last test run has kept: before it, delete the file and `.pytest_cache`, and run all daily
tests. What is missing, or from another version of the tracer, is traced by the test that needs it, in every run and by
every worker: so a test fails as soon as the file is from another version.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from modules.estimate import recordings
from modules.families.registry import FAMILIES
from modules.system.atomic import write_text
from modules.system.paths import PROGRAM_ROOT

_FILE = Path(__file__).parents[1] / "golden" / "recordings.zip"
_KEPT = PROGRAM_ROOT / ".pytest_cache" / "d" / "recordings"


def unpack_recordings(folder: Path) -> None:
    """Write the recordings that a folder lacks."""
    if not _FILE.is_file():  # it is about to be packed anew, without what is no longer used
        return
    with ZipFile(_FILE) as packed:
        for name in packed.namelist():
            if not (folder / name).is_file():
                (folder / name).parent.mkdir(exist_ok=True)
                write_text(folder / name, packed.read(name).decode())


def packed_tracer() -> str:
    """Return the version of the tracer whose recordings are packed."""
    with ZipFile(_FILE) as packed:
        return packed.comment.decode()


def tracer_version() -> str:
    """Return a digest of all source that recordings depend on, the passes of each family included."""
    passes = {part.model.passes for spec in FAMILIES.values() for part in spec.parts}
    digests = [*map(recordings._digest, recordings._TRACER), *map(recordings.passes_digest, sorted(passes))]
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:20]


def pack_recordings() -> None:
    """Pack the recordings of the last test run: always the same file for the same recordings."""
    with ZipFile(_FILE, "w", ZIP_DEFLATED) as packed:
        packed.comment = tracer_version().encode()
        for file in sorted(_KEPT.glob("*/*.json")):
            packed.writestr(ZipInfo(file.relative_to(_KEPT).as_posix()), file.read_bytes(), ZIP_DEFLATED)


if __name__ == "__main__":
    pack_recordings()
