"""web: the page in the browser, from this computer or a phone."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le

from modules.settings.field import Section, Setting
from modules.system.paths import from_root, queue_file
from trainer.cli.options import settings_verb
from trainer.cli.program import OK
from trainer.cli.signals import on_signal
from trainer.jobs.spec import Argument
from trainer.run_queue.file import QueueFile

_PORT = 7866


class WebSettings(Section):
    """Where the page is served, and what it shows."""

    workspaces: Annotated[
        tuple[str, ...],
        Setting(
            "Workspaces",
            "A workspace whose runs are shown; by default those below workspace, and those of your presets and of "
            "the queue.",
            path_kind="folder",
        ),
        Argument("--workspace", "FOLDER"),
    ] = ()
    host: Annotated[
        str,
        Setting(
            "Host",
            "The address of this computer to serve the page at; 0.0.0.0 is all of them. Any but 127.0.0.1 needs a "
            "token, which is part of the address that is shown.",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, Setting("Port", "The port; 0 is a free one."), Ge(0), Le(65535), Argument(metavar="NUMBER")
    ] = _PORT
    token: Annotated[
        bool, Setting("Token", "A token is needed on this computer, too: for a computer with several users.")
    ] = False
    json_lines: Annotated[
        bool,
        Setting("JSON lines", "For programs: print the address as a line of JSON, end with the standard input."),
    ] = False


def _serve(settings: WebSettings) -> int:
    from trainer.web.runs import usual_workspaces
    from trainer.web.serving import PageServer

    queue = QueueFile(queue_file())
    given = [from_root(folder) for folder in settings.workspaces]

    def workspaces() -> list[Path]:
        return given or usual_workspaces(queue.read)

    server = PageServer(workspaces, queue, host=settings.host, port=settings.port, has_token=settings.token)
    address = server.address
    if settings.json_lines:
        sys.stdout.write(json.dumps({"url": address.url, "note": address.note}) + "\n")
        threading.Thread(target=_stop_at_end_of_input, args=(server.stop,), daemon=True).start()
    else:
        code = f"\n{address.code()}" if address.is_open else ""
        sys.stdout.write(f"The page is at {address.url}\n{address.note} Ctrl-C ends it; runs continue.\n{code}")
    sys.stdout.flush()
    on_signal(server.stop, again=server.stop)
    server.serve()
    return OK


def _stop_at_end_of_input(stop: object) -> None:
    for _line in sys.stdin:
        pass
    assert callable(stop)
    stop()


WEB = settings_verb("the page in the browser: what trains, samples, commands, the queue, choices", WebSettings, _serve)
