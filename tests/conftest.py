"""What all tests share: one thread, no network, the user's own folders out of reach, tiny models built once."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from modules.families.spec import FamilySpec
from modules.system.errors import DarkroomError
from tests.builders.editing_models import EDITING_MODELS, write_editing_model
from tests.builders.flow_models import FLOW_MODELS, VARIANTS, flow_model
from tests.builders.images import draw_folder
from tests.builders.recordings import unpack_recordings

# Always the same examples, as a test that fails now and then is nobody's; more of them in the full suite. Without time
# limits: on a busy machine hypothesis would report that generating large configs is too slow.
EXAMPLES_DAILY, EXAMPLES_FULL = 30, 300

# A test makes and removes about ten small files and folders, which takes a disk longer than many a test: a fifth of the
# suite's time. The whole suite has less than 1 GB at a time; a container often has 64 MB here.
MEMORY_DIR, MEMORY_NEEDED_BYTES = Path("/dev/shm"), 8 * 2**30

# Objects that are made until the next garbage collection, by default 700: collecting the tests, and each of them, makes
# many that stay, which would be visited again and again. A test that needs a collection calls for it.
OBJECTS_PER_COLLECTION = 20_000

# Where compiled modules are kept if the environment forbids them next to the sources.
BYTECODE_DIR = Path(__file__).parents[1] / ".pytest_cache" / "bytecode"


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tests' files in memory, and let hypothesis try more examples of each property in the full suite."""
    keep_bytecode()
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    if MEMORY_DIR.is_dir() and shutil.disk_usage(MEMORY_DIR).free > MEMORY_NEEDED_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DIR))
    is_full = "not full" not in config.option.markexpr or "or not full" in config.option.markexpr
    hypothesis_settings.register_profile(
        "darkroom",
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
        max_examples=EXAMPLES_FULL if is_full else EXAMPLES_DAILY,
    )
    hypothesis_settings.load_profile("darkroom")


def keep_bytecode() -> None:
    """Keep compiled modules although `PYTHONDONTWRITEBYTECODE` is set, as it is in many containers.

    Otherwise each process of the tests compiles torch, diffusers and the tests again, which takes many of them longer
    than what they test. The processes of xdist and all children inherit the variables.
    """
    if sys.dont_write_bytecode:
        sys.dont_write_bytecode = False
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(BYTECODE_DIR))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove compiled modules that no run of the tests reads again.

    Those of the tests' own programs lie in a new folder each time.
    """
    if hasattr(config, "workerinput"):  # a process of xdist: the others are not at their end
        return
    for folder in {tempfile.gettempdir(), os.environ.get("PYTEST_DEBUG_TEMPROOT", "")} - {""}:
        shutil.rmtree(BYTECODE_DIR.joinpath(*Path(folder).parts[1:]), ignore_errors=True)
    for file in list(stale_bytecode(BYTECODE_DIR)):
        file.unlink(missing_ok=True)


def stale_bytecode(folder: Path) -> Iterator[Path]:
    """Yield the compiled modules whose source has been removed or renamed, and those of another Python."""
    for file in folder.rglob("*.pyc"):
        module, tag, *_ = file.name.split(".")
        source = Path(folder.anchor, *file.relative_to(folder).parts[:-1], f"{module}.py")
        if not (tag.startswith(str(sys.implementation.cache_tag)) and source.is_file()):
            yield file


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect the tests without garbage collections: nearly all that is made stays, and each would visit it again."""
    gc.disable()
    try:
        import_share(session)
        return (yield)
    finally:
        gc.enable()


def import_share(session: pytest.Session) -> None:
    """Let each process of xdist begin with another share of the modules, which then finds the others' compiled.

    Their asserts take twice as long to rewrite as the modules to import, and all processes collect at the same time.
    """
    ours = getattr(session.config, "workerinput", None)
    if ours is None:
        return
    paths = [Path(session.config.rootpath, argument.partition("::")[0]) for argument in session.config.args]
    modules = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("test_*.py")))]
    first = len(modules) * int(ours["workerid"].removeprefix("gw")) // ours["workercount"]
    for file in [*modules[first:], *modules[:first]]:
        with suppress(Exception, pytest.skip.Exception):  # the collection imports it again, and reports it
            import_module(".".join(file.relative_to(session.config.rootpath).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most rows of a test with the mark `daily` to the full suite: all but n that are spread evenly."""
    rows: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("daily") and not item.get_closest_marker("full"):
            rows.setdefault((str(item.path), getattr(item, "originalname", item.name)), []).append(item)
    for of_test in rows.values():
        (most,) = of_test[0].get_closest_marker("daily").args
        daily = {round(i * (len(of_test) - 1) / max(most - 1, 1)) for i in range(most)}
        for index, item in enumerate(of_test):
            if index not in daily:
                item.add_marker(pytest.mark.full)


@pytest.fixture(scope="session")
def recordings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the recorded passes of the tests' models, kept from run to run."""
    cache = getattr(request.config, "cache", None)  # None with `-p no:cacheprovider`
    folder = tmp_path_factory.mktemp("recordings") if cache is None else Path(cache.mkdir("recordings"))
    unpack_recordings(folder)
    return folder


@pytest.fixture
def home_dir(tmp_path: Path) -> Iterator[Path]:
    """A home folder next to the test's own folder, which is empty at first."""
    folder = tmp_path.with_name(f"{tmp_path.name}-home")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def isolated(home_dir: Path, recordings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests off the network and away from the user's configs, presets and logs.

    A test's patches, such as of `os.scandir`, are undone before the home folder is removed: `home_dir` comes first.
    """
    isolate(home_dir, recordings, monkeypatch)


def isolate(home_dir: Path, recordings: Path, patch: pytest.MonkeyPatch) -> None:
    """Set the variables that keep this process and its children off the network and in a home folder."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        patch.setenv(name, "1")
    if (constants := sys.modules.get("huggingface_hub.constants")) is not None:  # imported before, with a test's file
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        patch.setenv(name, str(home_dir / name.lower()))
    patch.delenv("DARKROOM_CALLER_DIR", raising=False)
    cache_dir = home_dir / "xdg_cache_home" / "darkroom"
    cache_dir.mkdir(parents=True)
    (cache_dir / "recordings").symlink_to(recordings, target_is_directory=True)


@pytest.fixture(scope="session", autouse=True)
def traced_here(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trace the passes of models in this process, each once. Children find the recordings in their cache folder.

    Fixtures of modules and of the session are isolated, too: they are made before `isolated`, which is for one test.
    """
    with pytest.MonkeyPatch.context() as patch:
        isolate(tmp_path_factory.mktemp("home"), recordings, patch)
        patch.setattr("trainer.preflight.passes.trace_in_child", trace_here)
        patch.setattr("modules.estimate.recordings.recordings_dir", lambda: recordings)
        yield


def trace_here(spec: FamilySpec, configs: Mapping[str, Mapping[str, Any]], _progress: object) -> None:
    """Trace the passes of these parts, and keep the recordings; invalid configs have none."""
    from modules.estimate.tracing import trace_parts

    with suppress(DarkroomError, ValueError, TypeError, KeyError, RuntimeError):
        trace_parts(spec, configs)


@pytest.fixture(scope="session", autouse=True)
def no_fsync() -> Iterator[None]:
    """Wait for no disk, which is a fifth of the time of small runs: no test cuts the power."""
    connect = sqlite3.connect

    def connect_without_waits(*arguments: Any, **options: Any) -> sqlite3.Connection:
        database = connect(*arguments, **options)
        with suppress(sqlite3.Error):  # of a file that is no database: its first use reports it
            database.execute("PRAGMA synchronous = OFF")
        return database

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(sqlite3, "connect", connect_without_waits)
        yield


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """One torch thread: tiny models are many times slower with two on a busy machine, and last bits depend on it."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Let each test draw the same numbers from torch's own generator, whichever tests its process has run before."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(20_250_717)  # no test's own seed, whose numbers could be those of a model


_MANY_MODULES = 200
_modules_frozen = 0


@pytest.fixture(scope="module", autouse=True)
def heap_frozen() -> None:
    """Freeze what the tests before have left alive, such as the collected tests and the fixtures of the session.

    A run ends with a garbage collection, and so do many tests: each would visit a million objects that stay.
    """
    freeze_heap()


@pytest.fixture(autouse=True)
def imports_frozen() -> None:
    """Freeze the modules that were imported since: diffusers and the like are imported where they are used."""
    if len(sys.modules) > _modules_frozen + _MANY_MODULES:
        freeze_heap()


def freeze_heap() -> None:
    """Exclude all objects that are alive now from garbage collections."""
    global _modules_frozen
    gc.collect()
    gc.freeze()
    _modules_frozen = len(sys.modules)


@pytest.fixture(scope="session")
def tiny_sd(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A tiny random SD 1.x as a diffusers folder; nobody may write to it."""
    from tests.builders.models import write_sd_folder

    return write_sd_folder(tmp_path_factory.mktemp("models") / "tiny-sd")


@pytest.fixture(scope="session")
def tiny_sd2(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A tiny random SD 2.x that predicts velocity; nobody may write to it."""
    from tests.builders.more_models import write_sd2_folder

    return write_sd2_folder(tmp_path_factory.mktemp("models") / "tiny-sd2")


@pytest.fixture(scope="session")
def tiny_sdxl(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A tiny random SDXL; nobody may write to it."""
    from tests.builders.more_models import write_sdxl_folder

    return write_sdxl_folder(tmp_path_factory.mktemp("models") / "tiny-sdxl")


@pytest.fixture(scope="session")
def tiny_sdxl_v(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A tiny random SDXL that predicts velocity, with zero terminal SNR; nobody may write to it."""
    from tests.builders.more_models import write_sdxl_folder

    return write_sdxl_folder(tmp_path_factory.mktemp("models") / "tiny-sdxl-v", zero_snr=True)


def _fixture_of_flow_model(name: str) -> Any:
    @pytest.fixture(scope="session", name=name)
    def written(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
        return flow_model(name).write(tmp_path_factory.mktemp("models") / name.replace("_", "-"))

    return written


# The tiny models of the flow families as diffusers folders, such as `tiny_z_image`; nobody may write to them.
globals().update({name: _fixture_of_flow_model(name) for name in (*FLOW_MODELS, *VARIANTS)})


def _fixture_of_editing_model(name: str) -> Any:
    @pytest.fixture(scope="session", name=name)
    def written(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
        return write_editing_model(name, tmp_path_factory.mktemp("models") / name)

    return written


# The tiny editing models, such as `tiny_flux_kontext`; nobody may write to them.
globals().update({name: _fixture_of_editing_model(name) for name in EDITING_MODELS})


@pytest.fixture(scope="session")
def tiny_flux_fill(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A tiny random FLUX.1 Fill; nobody may write to it."""
    from tests.builders.flux import write_flux_folder

    return write_flux_folder(tmp_path_factory.mktemp("models") / "tiny-flux-fill", fills=True)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five drawn images of two shapes, with captions; nobody may write to it."""
    sizes = [(64, 64), (64, 64), (64, 64), (96, 64), (96, 64)]
    return draw_folder(tmp_path_factory.mktemp("images"), sizes=sizes)
