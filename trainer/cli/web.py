"""web: the page in the browser, from this computer or a phone."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le

from modules.settings.field import Section, Setting
from modules.system.errors import DarkroomError
from modules.system.paths import from_root, queue_file
from trainer.cli.options import settings_verb
from trainer.cli.program import OK
from trainer.cli.signals import at_signal
from trainer.jobs.spec import Argument
from trainer.run_queue.file import QueueFile

_PORT = 7866


class WebSettings(Section):
    """The address of the page, and the workspaces that it shows."""

    workspaces: Annotated[
        tuple[str, ...],
        Setting(
            "Workspaces",
            "A workspace whose runs are shown; by default the ones below workspace, and the workspaces of your presets "
            "and of the queue.",
            path_kind="folder",
        ),
        Argument("--workspace", "FOLDER"),
    ] = ()
    host: Annotated[
        str,
        Setting(
            "Host",
            "The address of this computer to serve the page at; 0.0.0.0 is all of them. Any but 127.0.0.1 needs a "
            "token, which is part of the address that is shown and stays the same.",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, Setting("Port", "The port; 0 is a free one."), Ge(0), Le(65535), Argument(metavar="NUMBER")
    ] = _PORT
    token: Annotated[
        bool, Setting("Token", "A token is needed on this computer, too: for a computer with several users.")
    ] = False
    certificate: Annotated[
        str, Setting("Certificate", "Serve it by HTTPS with this certificate, a PEM file.", path_kind="file")
    ] = ""
    key: Annotated[
        str,
        Setting(
            "Key", "The private key of the certificate, if it is not in the same file; no passphrase.", path_kind="file"
        ),
    ] = ""
    json_lines: Annotated[
        bool,
        Setting("JSON lines", "For programs: print the address as JSON, read workspaces from standard input."),
    ] = False


def _serve(settings: WebSettings) -> int:
    from trainer.web.access import is_loopback, kept_token
    from trainer.web.runs import usual_workspaces
    from trainer.web.serving import Certificate, PageServer

    queue, token = QueueFile(queue_file()), ""
    if settings.token or not is_loopback(settings.host):
        token = kept_token()
    certificate = None
    if settings.key and not settings.certificate:
        raise DarkroomError("There is a --key, but no certificate.", advice="Name its file with --certificate.")
    if settings.certificate:
        key_file = from_root(settings.key) if settings.key else None
        certificate = Certificate(from_root(settings.certificate), key_file)
    given = [from_root(folder) for folder in settings.workspaces]

    def workspaces() -> list[Path]:
        return given if settings.workspaces else [*given, *usual_workspaces(queue.read)]

    def bound(port: int) -> PageServer:
        return PageServer(workspaces, queue, host=settings.host, port=port, token=token, certificate=certificate)

    try:
        server = bound(settings.port)
    except DarkroomError:
        if not settings.json_lines:
            raise
        server = bound(0)  # for a program, any port will do
    address = server.address
    with at_signal(server.stop, again=server.stop):
        if settings.json_lines:
            sys.stdout.write(json.dumps({"url": address.url, "note": address.note}) + "\n")
            reading = partial(_read_workspaces, given, server.stop)
            threading.Thread(target=reading, name="darkroom-workspaces", daemon=True).start()
        else:
            code = f"\n{address.code()}" if address.is_open else ""
            sys.stdout.write(f"The page is at {address.url}\n{address.note} Ctrl-C ends it; runs continue.\n{code}")
        sys.stdout.flush()
        server.serve()
    return OK


def _read_workspaces(given: list[Path], stop: Callable[[], None]) -> None:
    """Read further workspaces from the program that started this one, and stop when it has ended."""
    for line in sys.stdin:
        with suppress(ValueError):
            given[:] = [from_root(str(folder)) for folder in json.loads(line)]
    stop()


WEB = settings_verb("the page in the browser: what trains, samples, commands, the queue, choices", WebSettings, _serve)
