"""The recorded passes of the tests' models, which take a minute to trace: `python -m tests.builders.recordings`.

The command packs what the last test run has kept: before it, delete the file and `.pytest_cache`, and run all daily
tests. What is missing, or from another version of the tracer, is traced by the test that needs it.
"""

from __future__ import annotations

from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

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


def pack_recordings() -> None:
    """Pack the recordings of the last test run: always the same file for the same recordings."""
    with ZipFile(_FILE, "w", ZIP_DEFLATED) as packed:
        for file in sorted(_KEPT.glob("*/*.json")):
            packed.writestr(ZipInfo(file.relative_to(_KEPT).as_posix()), file.read_bytes(), ZIP_DEFLATED)


if __name__ == "__main__":
    pack_recordings()
