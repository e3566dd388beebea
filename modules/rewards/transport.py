"""Requests to reward servers: JSON over HTTP, with a time limit, retries and a limit of the answer's size.

Redirects are not followed and no proxy is used, so what is sent reaches the address that was entered and no other.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from modules.rewards.address import Address
from modules.rewards.waiting import Patience
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.problem import about, quote
from modules.system.redaction import redact
from modules.system.waiting import wait_for

_MAX_BYTES = 1_000_000  # of an answer; scores need far less
_MAX_QUOTED_CHARS = 200
_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS = 1.0, 15.0
_MAY_PASS = frozenset((408, 425, 429, 500, 502, 503, 504))


class UnavailableError(DarkroomError):
    """The server does not answer, or not yet: another try may succeed. `seconds` were spent on this one."""

    def __init__(self, message: str, *, advice: str, seconds: float = 0.0) -> None:
        super().__init__(message, advice=advice)
        self.seconds = seconds


class StatusError(DarkroomError):
    """The server refused the request with an HTTP status."""

    def __init__(self, status: int, message: str, *, advice: str) -> None:
        super().__init__(message, advice=advice)
        self.status = status


@dataclass(frozen=True, slots=True)
class RewardServer:
    """A server, its time limits and how to wait for it; `headers` may contain a key."""

    address: Address
    timeout_seconds: float
    retry_seconds: float
    patience: Patience = field(default_factory=Patience, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def ask(self, message: Mapping[str, Any]) -> Any:
        """Send a message as JSON and return the JSON of the answer.

        A server that does not answer is tried again, with growing delays, for `retry_seconds` in all. Raises
        DarkroomError: UnavailableError if it still does not answer, StatusError if it refuses the message.
        """
        body = json.dumps(message).encode()
        waited, delay, is_late = 0.0, _FIRST_DELAY_SECONDS, False
        while True:
            try:
                answer = self._ask_once(body)
            except UnavailableError as error:
                if waited >= self.retry_seconds:
                    raise
                if not is_late:
                    limit = about(self.retry_seconds)
                    self.patience.warn(
                        error.message,
                        f"The run continues once it answers, or ends with a backup after {limit}.",
                    )
                is_late = True
                self.patience.rest(delay)
                waited += delay + error.seconds
                delay = min(2 * delay, _MAX_DELAY_SECONDS)
                continue
            if is_late:
                self.patience.warn(f"The reward server {self.address} answers again.", "The run continues.")
            return answer

    def _ask_once(self, body: bytes) -> Any:
        connection = _connection_to(self.address, self.timeout_seconds)
        sockets: list[socket.socket] = []
        try:
            status, data = wait_for(
                lambda: self._exchange(connection, body, sockets),
                seconds=self.timeout_seconds,
                check=self.patience.check,
                cancel=lambda: _abort(sockets),
            )
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(error) from error
        finally:
            connection.close()
        if status != http.HTTPStatus.OK:
            raise self._refusal(status, data)
        if len(data) > _MAX_BYTES:
            raise self._wrong(f"sent more than {_MAX_BYTES // 1_000_000} MB")
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"did not send JSON but {_quote_beginning(data) or 'nothing'}") from error

    def _exchange(
        self, connection: http.client.HTTPConnection, body: bytes, sockets: list[socket.socket]
    ) -> tuple[int, bytes]:
        connection.connect()
        sockets.append(connection.sock)  # the connection forgets it once the answer begins
        headers = {"Content-Type": "application/json", "Accept": "application/json", **self.headers}
        connection.request("POST", self.address.path, body, headers)
        response = connection.getresponse()
        data = response.read(_MAX_BYTES + 1)
        if response.length and len(data) <= _MAX_BYTES:  # a limited read does not report that the rest is missing
            raise http.client.IncompleteRead(data, response.length)
        return response.status, data

    def _failure(self, error: Exception) -> DarkroomError:
        """Return the error for a request without an answer."""
        where = f"The reward server {self.address}"
        if isinstance(error, ssl.SSLError):
            return DarkroomError(
                f"{where} cannot be reached securely: {getattr(error, 'verify_message', '') or plain_reason(error)}.",
                advice="Check its certificate, and whether its address begins with http:// instead.",
            )
        start = "Start the server, and check its address and port."
        if isinstance(error, TimeoutError):
            return UnavailableError(
                f"{where} did not answer within {self.timeout_seconds:g} seconds.",
                advice="Check what the server is doing, or raise its time limit.",
                seconds=self.timeout_seconds,
            )
        if isinstance(error, ConnectionRefusedError):
            return UnavailableError(f"{where} is not running: nothing listens there.", advice=start)
        if isinstance(error, socket.gaierror):
            return UnavailableError(f"{where} cannot be found: its name is not known.", advice=start)
        reason = "it closed the connection" if isinstance(error, http.client.HTTPException) else plain_reason(error)
        return UnavailableError(f"{where} did not answer: {reason}.", advice=start)

    def _refusal(self, status: int, data: bytes) -> DarkroomError:
        """Return the error for an answer with another status than 200."""
        quoted = _quote_beginning(data)
        message = f"The reward server {self.address} answered with the HTTP status {status}"
        message += f" ({http.client.responses[status]})" if status in http.client.responses else ""
        if 300 <= status < 400:
            return StatusError(
                status, f"{message}, a redirect, which is not followed.", advice="Enter the final address."
            )
        message += f": {quoted}." if quoted else "."
        if status in _MAY_PASS:
            return UnavailableError(message, advice="Look into the server's own messages.")
        advice = {
            401: "Enter its API key under Tokens… in the presets menu.",
            403: "Check whether your API key may use this server.",
            404: "Check the path of the address, and the name of the model if it has one.",
            413: "Sample smaller images, fewer at a time, or raise the server's limit.",
        }.get(status, "Look into the server's own messages.")
        return StatusError(status, message, advice=advice)

    def _wrong(self, what: str) -> DarkroomError:
        return wrong_answer(self.address, what)


def wrong_answer(address: Address, what: str) -> DarkroomError:
    """Return the error for an answer that is not as agreed; `what` continues "The reward server ... "."""
    return DarkroomError(
        f"The reward server {address} {what}.", advice="docs/rewards.md describes what a server has to answer."
    )


def _connection_to(address: Address, timeout_seconds: float) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if address.is_encrypted else http.client.HTTPConnection
    return kind(address.host, address.port, timeout=timeout_seconds)


def _abort(sockets: list[socket.socket]) -> None:
    """End an exchange that another thread waits for; one that still connects ends by the socket's own time limit."""
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _quote_beginning(data: bytes) -> str:
    """Return the beginning of an answer on one line, quoted; empty for an empty one."""
    text = " ".join(redact(data.decode("utf-8", "replace")).split())
    return quote(text, max_chars=_MAX_QUOTED_CHARS) if text else ""
