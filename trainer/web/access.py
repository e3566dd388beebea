"""Who may use the page: the names it answers to, the token, where commands may come from, and the headers of answers.

A page of another site can send requests to this one from the user's browser. It cannot read the answers, it cannot set
the header of commands, and a name of its own that leads here (DNS rebinding) is refused by the Host that it sends.
"""

from __future__ import annotations

import ipaddress
import json
import platform
import secrets
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from modules.system.secrets_file import load_secrets, save_secrets

COMMAND_HEADER = "x-darkroom"
LOGIN = "/api/login"
_DATA = "/api/"
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_READING = frozenset({"GET", "HEAD"})
_HEADERS: tuple[tuple[str, str], ...] = (
    (
        "content-security-policy",
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
)


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one server. Without a token everyone who reaches its address may use it.

    `is_open` is whether it can be reached from other computers: under any address, and under `names`. `scheme` is http
    or https.
    """

    port: int
    token: str = ""
    is_open: bool = False
    names: frozenset[str] = _LOOPBACK_NAMES
    scheme: str = "http"

    @property
    def cookie(self) -> str:
        """The name of the cookie that holds the token; browsers share cookies between the ports of a host."""
        return f"darkroom-{self.port}"

    def refusal(self, method: str, path: str, headers: MutableMapping[str, str]) -> tuple[int, str] | None:
        """Return the status and the sentence with which a request is refused; None for a permitted one.

        `headers` are the request's, with names in lower case.
        """
        host = headers.get("host", "")
        if not self._is_own(host):
            return 421, "The page does not answer to this name. Open it by the address that Darkroom shows."
        if method not in _READING:
            origin = f"{self.scheme}://{host}"
            if headers.get("origin", origin) != origin or COMMAND_HEADER not in headers:
                return 403, "This command did not come from Darkroom's page."
        elif headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and path.startswith(_DATA):
            return 403, "Another site cannot read this."
        if self.token and path.startswith(_DATA) and path != LOGIN and not self._has_token(headers):
            return 401, "A token is needed: scan the code, or open the address that Darkroom shows."
        return None

    def is_token(self, given: str) -> bool:
        """Return whether a text is the token, in the same time for every wrong one."""
        return secrets.compare_digest(given.encode(errors="surrogatepass"), self.token.encode())

    def _is_own(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        name = name.strip("[]").lower()
        if name in self.names:
            return True
        return self.is_open and _is_address(name)

    def _has_token(self, headers: MutableMapping[str, str]) -> bool:
        return self.is_token(cookie_parser(headers.get("cookie", "")).get(self.cookie, ""))


def access_for(host: str, port: int, token: str) -> Access:
    """Return the rules of a server on an address. Any but the computer's own must have a token."""
    if is_loopback(host):
        return Access(port, token)
    assert token
    hostname = platform.node().lower()
    names = {hostname, f"{hostname}.local", hostname.partition(".")[0], host.lower()} if hostname else {host.lower()}
    return Access(port, token, is_open=True, names=_LOOPBACK_NAMES | names)


def kept_token() -> str:
    """Return the token of the page, so that a phone has to be signed in once only; the first time it is made.

    A file of secrets with a problem stays as it is: then the token is another one each time.
    """
    loaded = load_secrets()
    if loaded.secrets.web_token:
        return loaded.secrets.web_token
    made = secrets.token_urlsafe(18)
    if not loaded.problems:
        with suppress(OSError):
            save_secrets(replace(loaded.secrets, web_token=made))
    return made


def is_loopback(host: str) -> bool:
    """Return whether an address can only be reached from this computer."""
    return host.lower() in _LOOPBACK_NAMES or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class Guard:
    """Refuses requests by the rules, and adds the headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on (ASGI)."""
        if scope["type"] != "http":
            return  # no web sockets

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message.get("headers", ())}
                added = [*_HEADERS, ("cache-control", "no-store")]
                message["headers"] = [
                    *message.get("headers", ()),
                    *_encode_headers(h for h in added if h[0].encode() not in present),
                ]
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._access.refusal(scope["method"], scope["path"], headers)
        if refusal is None:
            await self._app(scope, receive, send_guarded)
            return
        status, sentence = refusal
        start = {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
        await send_guarded(start)
        await send({"type": "http.response.body", "body": json.dumps({"message": sentence}).encode()})


def _encode_headers(headers: Iterable[tuple[str, str]]) -> list[Any]:
    return [(name.encode(), value.encode()) for name, value in headers]
