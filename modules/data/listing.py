"""The files of a concept's source: a folder, a single image, a tar shard, a Parquet or Arrow file. Opens no image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from modules.data import tables
from modules.data.archives import ARCHIVE_SUFFIXES, SHARD_SUFFIXES
from modules.data.folder_files import LeftOut, list_files, stem_of, suffix_of
from modules.data.inputs import companion_suffixes
from modules.data.links import BROKEN, LEADS_OUT
from modules.data.shard_index import shard_index
from modules.system.problem import quote

# All that Pillow decodes by itself, and HEIC. Not among them: EPS and PostScript, which are run as a program.
SUFFIXES = frozenset(
    {".apng", ".avif", ".avifs", ".blp", ".bmp", ".bw", ".cur", ".dcx", ".dds", ".dib", ".fit", ".fits", ".flc",
     ".fli", ".ftc", ".ftu", ".gbr", ".gif", ".heic", ".heif", ".hif", ".icb", ".icns", ".ico", ".im", ".j2c", ".j2k",
     ".jfif", ".jp2", ".jpc", ".jpe", ".jpeg", ".jpf", ".jpg", ".jpx", ".msp", ".pbm", ".pcd", ".pcx", ".pfm",
     ".pgm", ".png", ".pnm", ".ppm", ".psd", ".pxr", ".qoi", ".ras", ".rgb", ".rgba", ".sgi", ".tga", ".tif",
     ".tiff", ".vda", ".vst", ".webp", ".xbm", ".xpm"}
)  # fmt: skip
_VIDEO = "a video, which cannot be trained: extract its frames as images"
_RAW = "a raw photo, which cannot be read: export it as JPEG, PNG or TIFF"
_VIDEO_SUFFIXES = (".3gp", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".ogv",
                   ".webm", ".wmv")  # fmt: skip
_RAW_SUFFIXES = (".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dng", ".erf", ".iiq", ".kdc", ".mrw", ".nef", ".nrw", ".orf",
                 ".pef", ".raf", ".rw2", ".rwl", ".sr2", ".srf", ".srw", ".x3f")  # fmt: skip
NOT_READ: Mapping[str, str] = {
    **dict.fromkeys(_VIDEO_SUFFIXES, _VIDEO),
    **dict.fromkeys(_RAW_SUFFIXES, _RAW),
    ".jxl": "a JPEG XL image, which cannot be read: export it as JPEG or PNG",
}
"""Why videos, raw photos and JPEG XL images are not read, by suffix."""
MASK_FIELD = ".mask.png"  # of a sample in a shard
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip", ".7z", ".rar")
_UNPACK = "a compressed archive, which cannot be read: unpack it, or store it as plain .tar"
_OTHER_ARROW = "an Arrow file that is not part of the data set: state.json does not name it"
_HIDDEN = "a hidden file"


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    """A file that looks like an image but cannot be used, with the reason.

    Also a metadata file with a problem. `setting` is the field of the concept that causes it, where one does;
    `is_too_small` is set for images that the minimum size or "Never upscale" leaves out. With `is_part` the file itself
    is used, and `reason` names the part of it that is left out; with `is_normal`, nothing is wrong with that.
    """

    path: Path
    reason: str
    setting: str = ""
    is_too_small: bool = False
    is_part: bool = False
    is_normal: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """The images of a source, sorted by path, and the files that are skipped. A path may lead into an archive."""

    images: tuple[Path, ...]
    skipped: tuple[SkippedEntry, ...]


def list_images(
    source: Path,
    *,
    include_subfolders: bool,
    within: Path | None = None,
    check: Callable[[], None] = lambda: None,
) -> Listing:
    """Return the images of a source. Raises OSError for one that cannot be listed.

    Links out of the source, or out of `within`, are skipped. `check` is called for each folder and may raise to stop.

    The archives of a folder are read if it has no image files; otherwise they are skipped, because they usually
    contain the same images.
    """
    skipped: list[SkippedEntry] = []
    if source.is_file():
        images = [source] if source.suffix.lower() not in ARCHIVE_SUFFIXES else list(_inside(source, skipped))
        return Listing(tuple(images), tuple(skipped))
    files = list(walk(source, include_subfolders=include_subfolders, skipped=skipped, within=within, check=check))
    companions = companion_suffixes()
    images = [
        p for p in files if p.suffix.lower() in SUFFIXES and not is_left_out(p.parent, p.name, companions, skipped)
    ]
    if images:
        skipped += skipped_archives(files)
    else:
        images = [i for archive in archives_among(source, files, skipped) for i in _inside(archive, skipped)]
    return Listing(tuple(images), tuple(sorted(skipped, key=lambda s: s.path)))


def archives_among(source: Path, files: Sequence[Path], skipped: list[SkippedEntry]) -> list[Path]:
    """Return the archives with images among the files of a folder without image files; `skipped` gets others."""
    archives = [p for p in files if is_archive(p.name)]
    skipped += [SkippedEntry(p, _UNPACK) for p in files if p.name.lower().endswith(_COMPRESSED)]
    if not archives and (splits := tables.split_names(source)):
        reason = f"a data set with the splits {', '.join(splits)}: choose the folder of one, or include subfolders"
        skipped.append(SkippedEntry(source / tables.SPLITS_FILE, reason))
    return list(without_unnamed_arrow_files(archives, skipped))


def walk(
    folder: Path,
    *,
    include_subfolders: bool,
    skipped: list[SkippedEntry],
    within: Path | None = None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Path]:
    """Yield the files of a folder, in their order. A folder that is reached twice, through a link, is read once.

    Subfolders that cannot be listed are added to `skipped`, and links that lead out of the folder, or out of `within`.
    `check` is called for each folder and may raise to stop. Raises OSError if the folder itself cannot be listed.
    """
    listed = list_files(
        folder, include_subfolders=include_subfolders, leave_out=skipped_recorder(skipped), within=within, check=check
    )
    for files in listed:
        for name in files.names:
            yield files.folder / name


def skipped_recorder(skipped: list[SkippedEntry]) -> Callable[[LeftOut], None]:
    """Return a function that adds what `list_files` leaves out to `skipped`."""

    def add(entry: LeftOut) -> None:
        unlisted = entry.error and f"a folder that cannot be listed ({entry.error.strerror})"
        skipped.append(SkippedEntry(entry.path, unlisted or (BROKEN if entry.is_broken else LEADS_OUT)))

    return add


def is_metadata(path: PurePath) -> bool:
    """Return whether a file is the metadata of the images of its folder, as data sets on the Hugging Face hub have."""
    return path.stem == "metadata" and path.suffix.lower() in (".jsonl", ".csv", ".parquet")


def is_left_out(folder: Path, name: str, companions: tuple[str, ...], skipped: list[SkippedEntry]) -> bool:
    """Return whether an image file is not trained: a companion of another, or a hidden file, added to `skipped`."""
    if stem_of(name).endswith(companions):  # masks and conditioning images, of other trainers, too
        return True
    if name.startswith("."):
        skipped.append(SkippedEntry(folder / name, _HIDDEN))
        return True
    return False


def skipped_archives(archives: Iterable[Path]) -> Iterator[SkippedEntry]:
    """Yield the archives of a folder with image files, which are skipped."""
    reason = "an archive next to image files; choose the archive itself to use its images"
    yield from (SkippedEntry(p, reason) for p in archives if is_archive(p.name))


def is_archive(name: str) -> bool:
    """Return whether a file may contain images, by its name."""
    return suffix_of(name).lower() in ARCHIVE_SUFFIXES and not is_metadata(PurePath(name))


def without_unnamed_arrow_files(archives: list[Path], skipped: list[SkippedEntry]) -> Iterator[Path]:
    """Yield archives without the Arrow files that a saved data set does not name; missing ones are reported."""
    named: dict[Path, tuple[str, ...]] = {}
    there = set(archives)
    for archive in archives:
        is_arrow, folder = archive.suffix.lower() == tables.ARROW_SUFFIX, archive.parent
        if is_arrow and folder not in named:
            named[folder] = tables.data_files(folder)
            missing = [n for n in named[folder] if folder / n not in there]
            if missing:
                reason = f"names a file of the data set that is not there: {quote(missing[0])}"
                skipped.append(SkippedEntry(folder / tables.STATE_FILE, reason))
        if is_arrow and named[folder] and archive.name not in named[folder]:
            skipped.append(SkippedEntry(archive, _OTHER_ARROW))
        else:
            yield archive


def is_hidden_archive(archive: Path, skipped: list[SkippedEntry]) -> bool:
    """Return whether an archive is a hidden file, which is added to `skipped`."""
    if not archive.name.startswith("."):
        return False
    skipped.append(SkippedEntry(archive, _HIDDEN))
    return True


def _inside(archive: Path, skipped: list[SkippedEntry]) -> Iterator[Path]:
    """Yield the images in an archive; what is wrong with it is added to `skipped`."""
    if is_hidden_archive(archive, skipped):
        return
    try:
        if archive.suffix.lower() in tables.TABLE_SUFFIXES:
            yield from (archive / tables.row_name(row) for row in range(num_rows_of(archive, skipped)))
        elif archive.suffix.lower() in SHARD_SUFFIXES:
            index = shard_index(archive)
            if index.problem:
                skipped.append(SkippedEntry(archive, index.problem))
            names = list(index.members)
            yield from (archive / names[place] for place in images_in_shard(archive, names, skipped))
    except OSError as error:
        skipped.append(SkippedEntry(archive, error.strerror or str(error)))


def num_rows_of(table: Path, skipped: list[SkippedEntry]) -> int:
    """Return the number of rows with images; 0 for a table without images, which is added to `skipped`.

    Raises OSError.
    """
    facts = tables.table_facts(table)
    if not facts.image_column:
        skipped.append(SkippedEntry(table, f"has no column of images; its columns are {', '.join(facts.columns)}"))
    return facts.num_rows if facts.image_column else 0


def images_in_shard(shard: Path, names: Sequence[str], skipped: list[SkippedEntry]) -> list[int]:
    """Return the places of the images among the members of a shard; `skipped` gets hidden and unreadable ones.

    0001.seg.png next to 0001.jpg is another field of the same sample; so is 0001.mask.png next to 0001.large.jpg.
    """
    suffixes = [suffix_of(name.rpartition("/")[2]).lower() for name in names]
    images = [
        (place, sample_name(name), *_split_member(name))
        for place, name in enumerate(names)
        if suffixes[place] in SUFFIXES
    ]
    skipped += [SkippedEntry(shard / n, NOT_READ[s]) for n, s in zip(names, suffixes, strict=True) if s in NOT_READ]
    companions = companion_suffixes()
    plain = {sample for _, sample, _, name in images if "." not in stem_of(name)}
    others = {sample for _, sample, _, name in images if not name.endswith(MASK_FIELD)}
    places = []
    for place, sample, folder, name in images:
        is_field = "." in stem_of(name) and sample in (others if name.endswith(MASK_FIELD) else plain)
        if not is_field and not is_left_out(shard / folder, name, companions, skipped):
            places.append(place)
    return places


def _split_member(member: str) -> tuple[str, str]:
    """Return the folder of a member of a shard, and its name there."""
    folder, _, name = member.rpartition("/")
    return folder, name


def sample_name(member: str) -> str:
    """Return the sample of a shard of a member, its `__key__`: its path up to the first dot of its name."""
    folder, slash, name = member.rpartition("/")
    return folder + slash + (name.partition(".")[0] or name)


def sample_of(member: Path) -> Path:
    """Return the path of the sample of a shard that one of its files belongs to."""
    return member.with_name(sample_name(member.name))
