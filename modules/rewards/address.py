"""The address of a reward server in a config, and the approval to send images there.

A config can come from anywhere, so images go to another computer only after the user approved exactly that address.
Approvals are kept with the approvals of code files (`user_code_file.py`), outside of configs. Servers on this computer
need none.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from urllib import parse

from modules.system.errors import DarkroomError
from modules.system.problem import quote

_EXAMPLE = "http://127.0.0.1:8765/score"
_PORTS = {"http": 80, "https": 443}
_KEPT_IN_PATHS = "/%:=&?~+,;@!$'()*[]"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server: "http" or "https", its host in ASCII, its port, and the path with its query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def is_local(self) -> bool:
        """Whether the server is on this computer: then nothing leaves it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection is encrypted, so that others cannot read what is sent."""
        return self.scheme == "https"

    @property
    def digest(self) -> str:
        """The hexadecimal SHA-256 by which its approval is stored. It never equals the digest of a file of code."""
        return hashlib.sha256(f"address\0{self}".encode()).hexdigest()

    def under(self, path: str) -> Address:
        """Return the address with a path added, unless its path ends with it; a query stays behind it."""
        base, mark, query = self.path.partition("?")
        base = base.rstrip("/").removesuffix(path)
        return Address(self.scheme, self.host, self.port, f"{base}{path}{mark}{query}")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def parse_address(text: str) -> Address:
    """Return the address in a text such as "http://127.0.0.1:8765/score". Raises DarkroomError if it is not one."""
    text = text.strip()
    if not text:
        raise DarkroomError(
            "No address of a reward server is set.", advice=f"Enter where it listens, for example {_EXAMPLE}."
        )
    try:
        parts = parse.urlsplit(text)
        port, host = parts.port, (parts.hostname or "").encode("idna").decode("ascii")
    except ValueError:  # a port that is not a number, brackets without an end, a name that cannot exist
        port, host, parts = None, "", parse.urlsplit("")
    if parts.username is not None or parts.password is not None:
        raise DarkroomError(
            "The address of the reward server contains a user name or a password, which configs must not contain.",
            advice="Remove it, with the @ behind it. A key for a vision language model is entered under Tokens….",
        )
    if parts.scheme not in _PORTS or not host or any(c <= " " for c in text) or port == 0:
        raise DarkroomError(
            f"{quote(text)} is not the address of a server.",
            advice=f"Enter it with http:// or https:// before it, for example {_EXAMPLE}.",
        )
    path = parse.quote(parts.path or "/", safe=_KEPT_IN_PATHS)
    query = f"?{parse.quote(parts.query, safe=_KEPT_IN_PATHS)}" if parts.query else ""
    return Address(parts.scheme, host, port or _PORTS[parts.scheme], path + query)


def require_approval(address: Address, approved_hashes: Collection[str]) -> None:
    """Raise DarkroomError for a server on another computer that the user has not approved."""
    if not address.is_local and address.digest not in approved_hashes:
        raise DarkroomError(
            f"Images and prompts would be sent to {address}, which is not approved.",
            advice=f"If you trust this server, approve it in the window, or start with --allow-address {address}.",
        )
