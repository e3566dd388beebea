"""The addresses of the page: its own files, the stream, samples, downloads and commands."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from modules.data.images import open_image
from modules.system.errors import DarkroomError
from modules.system.file_errors import describe_file_error
from modules.system.regular_files import json_object_in
from trainer.run_queue.file import QueueFile
from trainer.web import actions
from trainer.web.access import LOGIN, Access, Guard
from trainer.web.downloads import downloads_of
from trainer.web.overview import overview_of, shown_presets
from trainer.web.runs import IMAGE_TYPES, Runs, candidate_of, image_of, request_of
from trainer.web.starts import Starts
from trainer.web.stream import Feed, Recent

_PAGE = Path(__file__).parent / "page"
_LOOK_SECONDS, _ALIVE_LOOKS = 0.5, 30
_OVERVIEW_SECONDS = 1.0
_MAX_BODY_BYTES, _MAX_STREAMS = 4096, 24
_SMALL_PX = 360
_COOKIE_SECONDS = 90 * 24 * 3600
_IMAGES_KEPT = {"cache-control": "private, max-age=86400"}  # their addresses have a version


class Site:
    """The page of some runs and a queue."""

    def __init__(self, runs: Runs, queue: QueueFile, access: Access) -> None:
        self._runs, self._queue, self._access = runs, queue, access
        self._starts = starts = Starts(queue)
        self._overview = Recent(lambda: overview_of(runs, queue, starts), _OVERVIEW_SECONDS)
        self._num_streams = 0

    def app(self) -> ASGIApp:
        """Return the page as an ASGI application."""
        routes = [
            Route("/api/stream", self._stream),
            Route("/api/presets", _answer(lambda request, _body: shown_presets())),
            Route(LOGIN, self._log_in, methods=["POST"]),
            Route("/api/start", _answer(self._start), methods=["POST"]),
            Route("/api/queue", _answer(self._change_queue), methods=["POST"]),
            Route("/api/runs/{run}/command", _answer(self._command), methods=["POST"]),
            Route("/api/runs/{run}/choices/{name}", _answer(self._choose), methods=["POST"]),
            Route("/api/runs/{run}/choices/{name}/{number:int}", _file(self._candidate)),
            Route("/api/runs/{run}/samples/{image}", _file(self._sample)),
            Route("/api/runs/{run}/files/{file}", _file(self._download)),
            Mount("/", StaticFiles(directory=_PAGE, html=True)),
        ]
        errors = {DarkroomError: _refuse, OSError: _report, HTTPException: _answer_not_found}
        return Guard(Starlette(routes=routes, exception_handlers=errors), self._access)

    # -- showing

    async def _stream(self, request: Request) -> Response:
        run_id = request.query_params.get("run", "")
        run_dir = await to_thread.run_sync(self._run_dir, run_id) if run_id else None
        if self._num_streams >= _MAX_STREAMS:
            raise HTTPException(503, "Too many pages are open. Close some of them.")
        last_id = request.headers.get("last-event-id", "")
        feed = Feed(self._overview, run_dir, last_id, start_of=self._starts.of)
        return StreamingResponse(self._messages(feed), media_type="text/event-stream")

    async def _messages(self, feed: Feed) -> AsyncIterator[str]:
        """Yield the messages of a feed until the browser leaves, which cancels this."""
        self._num_streams += 1
        try:
            num_silent = 0
            while True:
                text = await to_thread.run_sync(feed.next)
                num_silent = 0 if text else num_silent + 1
                if text or num_silent % _ALIVE_LOOKS == 0:  # a comment finds a connection that was lost
                    yield text or ":\n\n"
                await anyio.sleep(_LOOK_SECONDS)
        finally:
            self._num_streams -= 1

    def _sample(self, request: Request) -> Response:
        path = image_of(self._run_of(request), request.path_params["image"])
        return _image(path, is_small="small" in request.query_params)

    def _candidate(self, request: Request) -> Response:
        asked = request_of(self._run_of(request), request.path_params["name"])
        return _image(candidate_of(asked, request.path_params["number"]) if asked is not None else None)

    def _download(self, request: Request) -> Response:
        file = downloads_of(self._run_of(request)).get(request.path_params["file"])
        if file is None:
            raise HTTPException(404, "This file is not there any more.")
        if not file.is_as_written:
            raise HTTPException(409, f"{file.path.name} has changed since the run wrote it, so it is not sent.")
        if file.path.is_dir():
            named = f"attachment; filename*=utf-8''{quote(file.name)}"
            zipped = file.zip_chunks()
            return StreamingResponse(zipped, media_type="application/zip", headers={"content-disposition": named})
        return FileResponse(file.path, media_type="application/octet-stream", filename=file.name)

    # -- acting

    async def _log_in(self, request: Request) -> Response:
        body = await _body_of(request)
        if not self._access.is_token(str(body.get("token", ""))):
            return JSONResponse({"message": "This is not the token."}, 401)
        response = JSONResponse({"message": ""})
        access = self._access
        response.set_cookie(
            access.cookie,
            access.token,
            max_age=_COOKIE_SECONDS,
            httponly=True,
            samesite="strict",
            secure=access.scheme == "https",
        )
        return response

    def _start(self, _request: Request, body: Mapping[str, Any]) -> Mapping[str, str]:
        with self._starts.beginning:
            return _as_message(actions.start(self._queue, self._runs, self._starts, str(body.get("preset"))))

    def _change_queue(self, _request: Request, body: Mapping[str, Any]) -> Mapping[str, str]:
        match body:
            case {"action": "run"}:
                with self._starts.beginning:
                    return _as_message(actions.run_queue(self._queue, self._starts))
            case {"action": str(action), "number": int(number)}:
                return _as_message(actions.change_queue(self._queue, action, number))
            case _:
                raise DarkroomError("The request is not valid.", advice="Load the page again.")

    def _command(self, request: Request, body: Mapping[str, Any]) -> Mapping[str, str]:
        run_dir = self._run_of(request)
        match body.get("command"):
            case "follow":
                with self._starts.beginning:
                    return _as_message(actions.follow(run_dir, self._starts))
            case "resume_run":
                with self._starts.beginning:
                    return _as_message(actions.resume(run_dir, self._runs, self._starts))
            case name:
                return _as_message(actions.command(run_dir, str(name)))

    def _choose(self, request: Request, body: Mapping[str, Any]) -> Mapping[str, str]:
        return _as_message(actions.choose(request_of(self._run_of(request), request.path_params["name"]), body))

    def _run_of(self, request: Request) -> Path:
        return self._run_dir(str(request.path_params["run"]))

    def _run_dir(self, run_id: str) -> Path:
        run_dir = self._runs.find(run_id)
        if run_dir is None:
            raise HTTPException(404, "This run is not there any more.")
        return run_dir


def _answer(work: Callable[[Request, Mapping[str, Any]], object]) -> Callable[[Request], Any]:
    """Return an endpoint that does the work of a request in a thread, and sends its result as JSON."""

    async def endpoint(request: Request) -> Response:
        body = await _body_of(request) if request.method == "POST" else {}
        return JSONResponse(await to_thread.run_sync(work, request, body))

    return endpoint


def _file(find: Callable[[Request], Response]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        return await to_thread.run_sync(find, request)

    return endpoint


async def _body_of(request: Request) -> Mapping[str, Any]:
    """Return the JSON object of a request. Raises DarkroomError for anything else."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise HTTPException(413, "The request is too long.")
    if (data := json_object_in(body)) is None:
        raise DarkroomError("The request is not valid.", advice="Load the page again.")
    return data


def _image(path: Path | None, *, is_small: bool = False) -> Response:
    if path is None:
        raise HTTPException(404, "This image is not there any more.")
    if not is_small:
        return FileResponse(path, media_type=IMAGE_TYPES[path.suffix.lower()], headers=_IMAGES_KEPT)
    with open_image(path) as image:
        image.draft("RGB", (_SMALL_PX, _SMALL_PX))
        small = image.convert("RGB")
    small.thumbnail((_SMALL_PX, _SMALL_PX))
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=85)
    return Response(buffer.getvalue(), media_type="image/jpeg", headers=_IMAGES_KEPT)


def _as_message(message: str) -> Mapping[str, str]:
    return {"message": message}


async def _refuse(_request: Request, error: Exception) -> Response:
    return JSONResponse(_as_message(str(error)), 409)


async def _report(_request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    return JSONResponse(_as_message(" ".join(describe_file_error(error))), 500)


async def _answer_not_found(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(_as_message(error.detail), error.status_code)
