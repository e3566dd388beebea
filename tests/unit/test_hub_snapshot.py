"""A download from Hugging Face states its size first, stops at once, and names why it failed and what to do."""

from __future__ import annotations

import io
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import httpx

from modules.annotators.download import download_place
from modules.annotators.registry import ModelFiles
from modules.data.hub import HubDataset
from modules.data.hub_download import download
from modules.formats.diffusers_folder import locate
from modules.formats.hub_files import Downloads, local_file
from modules.formats.hub_snapshot import download_snapshot, failure_of
from modules.formats.published_files import FileRequest, PublishedFile
from modules.system.errors import DarkroomError
from modules.system.secrets import HubAccess

NAME = "somebody/something"


class StoppedError(Exception):
    """Raised by a test's `on_bytes`."""


def files_of(cache: Path, patch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Let Hugging Face answer with a repository of files of some sizes."""
    files = [
        SimpleNamespace(rfilename=f"{name}/model.safetensors", size=size, blob_id="", lfs=SimpleNamespace(sha256=name))
        for name, size in sizes.items()
    ]
    info = SimpleNamespace(siblings=files, sha="0" * 40)
    patch.setattr("huggingface_hub.HfApi.repo_info", lambda *_, **__: info)
    patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))


def http_error(code: int) -> HfHubHTTPError:
    request = httpx.Request("GET", "https://example.org")
    return HfHubHTTPError("no", response=httpx.Response(code, request=request))


def test_a_stop_does_not_wait_for_what_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub reports each 10 MB of a file: a Stop took a minute and more where a download is slow."""
    released, ended, reports = threading.Event(), threading.Event(), list[tuple[float, float]]()

    def hangs(*_: Any, tqdm_class: Any, **__: Any) -> str:
        with tqdm_class(total=9, unit="B", name="huggingface_hub.snapshot_download") as bar:
            released.wait()
            try:
                bar.update(1)
            finally:
                ended.set()
        return str(tmp_path)

    def on_bytes(done: float, total: float) -> None:
        reports.append((done, total))
        if total:
            raise StoppedError

    monkeypatch.setattr("huggingface_hub.snapshot_download", hangs)
    files_of(tmp_path, monkeypatch, unet=7_000, vae=2_000)
    with pytest.raises(StoppedError):
        download_snapshot(NAME, allow_patterns=["*"], on_bytes=on_bytes)
    assert not ended.is_set()
    assert reports[-1] == (0.0, 9_000.0), "the whole size, before anything has arrived"
    released.set()
    ended.wait()  # what comes later ends the threads of the download
    assert reports[-1] == (0.0, 9_000.0)


def test_a_stopped_download_reads_no_more_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads read on until 10 MB had arrived, for which Python waits before the process ends."""
    read, ended = list[int](), threading.Event()

    def content() -> Iterator[bytes]:
        for number in range(16):
            read.append(number)
            yield bytes(2**18)

    def fetch(*_: Any, tqdm_class: Any, **__: Any) -> str:
        try:
            http_get("https://example.org/file", io.BytesIO(), expected_size=2**22, tqdm_class=tqdm_class)
        finally:
            ended.set()
        return str(tmp_path)

    def on_bytes(done: float, _total: float) -> None:
        if done:
            raise StoppedError

    response = httpx.Response(200, content=content(), request=httpx.Request("GET", "https://example.org/file"))
    monkeypatch.setattr("huggingface_hub.file_download.http_stream_backoff", lambda **_: nullcontext(response))
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    files_of(tmp_path, monkeypatch)
    with pytest.raises(StoppedError):
        download_snapshot(NAME, allow_patterns=["*"], on_bytes=on_bytes)
    ended.wait()
    assert read == [0]


def test_the_size_is_that_of_the_files_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to grow with each file that was begun: 34 % of the configs, then 12 % of the weights."""
    totals = set()

    def fetch(*_: Any, tqdm_class: Any, **__: Any) -> str:
        with tqdm_class(total=0, unit="B", name="huggingface_hub.snapshot_download") as bar:
            for size in (3, 2_000):
                bar.total += size
                bar.update(size)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    files_of(tmp_path, monkeypatch, config=3, vae=2_000, unet=7_000, text_encoder=500)
    cached = tmp_path / f"models--{NAME.replace('/', '--')}/snapshots" / ("0" * 40)
    (cached / "unet").mkdir(parents=True)
    (cached / "unet/model.safetensors").touch()
    (tmp_path / f"models--{NAME.replace('/', '--')}/blobs").mkdir()
    (tmp_path / f"models--{NAME.replace('/', '--')}/blobs/text_encoder").touch()  # of an older revision
    download_snapshot(NAME, allow_patterns=["*"], on_bytes=lambda _done, total: totals.add(total))
    assert totals - {0.0} == {2_003.0}


def test_what_does_not_fit_the_disk_is_refused_before_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("it was begun"))
    files_of(tmp_path / "new", monkeypatch, unet=7_000_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=1_000_000_000))
    with pytest.raises(DarkroomError, match=r"7\.0 GB are missing, and only 1\.0 GB are free in .*new") as caught:
        locate(NAME, offline=False, cache_dir="")
    assert caught.value.remedy == "space"
    assert "Free some space" in caught.value.advice
    assert "connection" not in str(caught.value)


def locate_model() -> object:
    return locate(NAME, offline=False, cache_dir="")


def locate_dataset() -> object:
    dataset = HubDataset("owner", "name")
    return download(dataset, cache_dir="", hub=HubAccess(), on_bytes=lambda _done, _total: None)


def locate_file() -> object:
    request = FileRequest(PublishedFile("file", NAME, "model.safetensors", 1), None)
    return local_file(request, Downloads(), needed_by="The reward")


def locate_captioner() -> object:
    files = ModelFiles(NAME, ("model.onnx",))
    return download_place(files, hub=HubAccess(), on_bytes=lambda _done, _total: None)


@pytest.mark.parametrize("ask", [locate_model, locate_dataset, locate_file, locate_captioner])
def test_a_connection_that_breaks_is_an_error_with_what_to_do(
    ask: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last try of huggingface_hub raises no OSError: it ended as an unknown error of the program."""

    def breaks(*_: Any, **__: Any) -> str:
        raise httpx.RemoteProtocolError("peer closed connection without sending complete message body")

    monkeypatch.setattr("huggingface_hub.snapshot_download", breaks)
    with pytest.raises(DarkroomError, match="the connection broke") as caught:
        ask()
    assert "Check the connection and try again. Files that have arrived are kept." in caught.value.advice


@pytest.mark.parametrize(
    ("error", "reason", "remedy"),
    [
        (http_error(401), "Hugging Face gives no access to it (401)", "tokens"),
        (http_error(429), "Hugging Face takes no more requests for now (429)", ""),
        (http_error(503), "Hugging Face itself has a failure (503)", ""),
        (OSError(28, "No space left on device"), "the disk is full", "space"),
        (OSError("no route to host"), "no route to host", ""),
    ],
)
def test_each_failure_has_its_reason(error: Exception, reason: str, remedy: str) -> None:
    failure = failure_of(error)
    assert (failure.reason, failure.remedy) == (reason, remedy)


def test_a_computer_without_a_connection_is_named() -> None:
    error = LocalEntryNotFoundError("Got: ConnectError: [Errno -2] Name or service not known")
    error.__cause__ = httpx.ConnectError("[Errno -2] Name or service not known")
    assert failure_of(error).reason == "Hugging Face could not be reached"
    error.__cause__ = http_error(502)
    assert failure_of(error).reason == "Hugging Face itself has a failure (502)"
