"""Serving the page: the address, the socket, and the server until it is to stop."""

from __future__ import annotations

import io
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import segno
import uvicorn

from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from trainer.run_queue.file import QueueFile
from trainer.web.access import Access, access_for, is_loopback
from trainer.web.runs import Runs
from trainer.web.site import Site

_ANYWHERE = ("0.0.0.0", "::", "")
_FAR = ("192.0.2.1", 9)  # an address of documents: nothing is sent there
_GRACE_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Address:
    """Where the page can be opened. `url` has the token, behind a mark that browsers do not send."""

    url: str
    is_open: bool

    @property
    def note(self) -> str:
        """Who can reach it, as a sentence."""
        if not self.is_open:
            return "It can be opened on this computer only."
        who = "Everyone in your network who has this address with its token can use it."
        if self.url.startswith("https:"):
            return f"{who} The connection is encrypted."
        return f"{who} The connection is not encrypted: use it at home or through a VPN, never openly on the internet."

    def code(self) -> str:
        """Return the address as a QR code for a terminal."""
        text = io.StringIO()
        segno.make(self.url, micro=False).terminal(text, compact=True)
        return text.getvalue()


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate for HTTPS with its private key, as PEM files; without a `key_file` both are in one."""

    file: Path
    key_file: Path | None = None

    def require_valid(self) -> None:
        """Raise DarkroomError unless both can be read and belong together."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.file, self.key_file, password="")
        except OSError as error:  # also errors of SSL
            reason = "there is no certificate with its key" if isinstance(error, ssl.SSLError) else plain_reason(error)
            files = " and ".join(str(file) for file in (self.file, self.key_file) if file is not None)
            raise DarkroomError(
                f"{files} cannot be used for HTTPS: {reason}.",
                advice="Choose PEM files: a certificate, and its private key without a passphrase.",
            ) from error


class PageServer:
    """A bound address, and the page that is served there."""

    def __init__(
        self,
        workspaces: Callable[[], Iterable[Path]],
        queue: QueueFile,
        *,
        host: str,
        port: int,
        token: str = "",
        certificate: Certificate | None = None,
    ) -> None:
        """Bind the address; any but the computer's own needs a token. With a certificate it is served by HTTPS.

        Raises DarkroomError if the address cannot be bound, or the certificate cannot be used.
        """
        if certificate is not None:
            certificate.require_valid()
        scheme = "http" if certificate is None else "https"
        self._socket = _bind(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.access: Access = replace(access_for(host, self.port, token), scheme=scheme)
        shown = _own_address() if host in _ANYWHERE else host
        shown = f"[{shown}]" if ":" in shown else shown
        mark = f"#token={self.access.token}" if self.access.token else ""
        self.address = Address(f"{scheme}://{shown}:{self.port}/{mark}", is_open=not is_loopback(host))
        config = uvicorn.Config(
            Site(Runs(workspaces), queue, self.access).app(),
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            http="h11",
            loop="asyncio",
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            ssl_certfile=None if certificate is None else certificate.file,
            ssl_keyfile=None if certificate is None else certificate.key_file,
        )
        self._server = _Server(config)

    def serve(self) -> None:
        """Serve the page until `stop` is called, or a signal ends the program."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Stop serving; streams are cut off after a moment."""
        self._server.should_exit = True

    def start(self) -> threading.Thread:
        """Serve the page on a thread, and return it."""
        thread = threading.Thread(target=self.serve, name="darkroom-page", daemon=True)
        thread.start()
        return thread


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down without logging the connections that are cut off: an open page and a download always are."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # the next server sets its own level
        await super().shutdown(sockets)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = plain_reason(error) if isinstance(error, OSError) else "it is not an address"
        reason = reason.partition(" (while attempting")[0]  # Python repeats the address
        raise DarkroomError(
            f"The page cannot be served at {host}, port {port}: {reason}.",
            advice="Choose another port with --port, or another address of this computer with --host.",
        ) from None


def _own_address() -> str:
    """Return the address of this computer in its network; without a network, the loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_FAR)
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
