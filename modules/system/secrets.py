"""Tokens and passwords: their own file, readable by its owner alone, and never a part of any config.

The file has the shape of OneTrainer's `secrets.json`, so that either reads the other's. Torch-free.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from modules.system.problem import Problem
from modules.system.redaction import keep_secret


class _Unshown:
    """What shows of itself only which values are set, wherever it is printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.repr}  # type: ignore[arg-type]
        parts = [f"{n}={v!r}" if isinstance(v, _Unshown) else f"{n} set" for n, v in own.items() if v]
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True, slots=True, repr=False)
class CloudSecrets(_Unshown):
    """How to reach a rented or own machine. An empty text is a value that is not set."""

    api_key: str = ""
    id: str = ""
    host: str = ""
    port: str = ""
    user: str = ""
    key_file: str = ""
    password: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Secrets(_Unshown):
    """All that is secret. `others` are entries of the file that are not known here; they stay in it."""

    huggingface_token: str = ""
    cloud: CloudSecrets = CloudSecrets()
    others: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class SecretField:
    """One value by its name in the file, what people call it, and whether it opens a door by itself.

    What does not (a host, a user) is kept with the rest, but is shown in its entry and stays readable in logs: taken
    out of them, a user's name would take every path of their home with it.
    """

    name: str
    label: str
    is_key: bool = False


SECRET_FIELDS: tuple[SecretField, ...] = (
    SecretField("huggingface_token", "Hugging Face token", is_key=True),
    SecretField("cloud.api_key", "Cloud API key", is_key=True),
    SecretField("cloud.id", "Cloud machine's id"),
    SecretField("cloud.host", "Cloud host"),
    SecretField("cloud.port", "Cloud port"),
    SecretField("cloud.user", "Cloud user"),
    SecretField("cloud.key_file", "Cloud key file"),
    SecretField("cloud.password", "Cloud password", is_key=True),
)
SECRET_NAMES = tuple(f.name for f in SECRET_FIELDS)
WHERE_TO_ENTER = "Tokens… in the menu of presets, or python -m trainer secrets set NAME"
WHERE_TO_IMPORT = "Tokens…, Import… in the window, or python -m trainer secrets import FILE"


def secret(secrets: Secrets, name: str) -> str:
    """Return the value of a name of `SECRET_NAMES`; empty where it is not set."""
    section, _, key = name.rpartition(".")
    value: str = getattr(secrets.cloud if section else secrets, key)
    return value


def with_secret(secrets: Secrets, name: str, value: str) -> Secrets:
    """Return the secrets with another value, without the blanks around it; an empty one is a removed one."""
    section, _, key = name.rpartition(".")
    change: dict[str, Any] = {key: value.strip()}
    return replace(secrets, cloud=replace(secrets.cloud, **change)) if section else replace(secrets, **change)


def fault_of(name: str, value: str) -> str:
    """Return what is wrong with a value, in a sentence that does not show it; nothing where it will do."""
    value = value.strip()
    if name == "huggingface_token" and not all("!" <= c <= "~" for c in value):
        return "A Hugging Face token is one word of plain letters, digits and signs. Copy it again."
    if name == "cloud.port" and value and not (value.isascii() and value.isdigit() and 0 < int(value[:6]) <= 65535):
        return "A port is a number from 1 to 65535."
    return ""


def guard(secrets: Secrets, environment: Mapping[str, str] = os.environ) -> None:
    """Have the values that open doors taken out of all logs and events, the environment's token included."""
    keep_secret(*(secret(secrets, f.name) for f in SECRET_FIELDS if f.is_key))
    keep_secret(*(environment.get(name, "") for name in _ENVIRONMENT_TOKENS))


def without_secrets(tree: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the data of a config without anything whose key says that it is secret, wherever it is, and a note for
    each: unknown settings are kept, and so would a token be.
    """
    notes: list[Problem] = []
    return _sifted(tree, "", notes), notes


def _sifted(node: Any, path: str, notes: list[Problem]) -> Any:
    if isinstance(node, list):
        return [_sifted(value, f"{path}{number}.", notes) for number, value in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    kept = {}
    for key, value in node.items():
        if not any(_SECRET_KEY.fullmatch(part) for part in str(key).split(".")):
            kept[key] = _sifted(value, f"{path}{key}.", notes)
        elif value:
            message = "Passwords and tokens are not taken over into configs."
            notes.append(Problem(f"{path}{key}", message, "info", f"Take them over by {WHERE_TO_IMPORT}."))
    return kept


_SECRET_KEY = re.compile(
    r"secrets?|(\w+_)?(password|api_?key)|(huggingface|hugging_face|hf|hub|access|auth)_token", re.IGNORECASE
)


def from_json(data: Mapping[str, Any]) -> tuple[Secrets, list[str]]:
    """Return the secrets of a file's data, and the names of those that hold no text; these are left out."""
    secrets, odd = Secrets(), []
    for name in SECRET_NAMES:
        match _at(data, name):
            case None | "" | 0 | False:
                continue
            case str() | int() as value if not fault_of(name, str(value)):
                secrets = with_secret(secrets, name, str(value))
            case _:
                odd.append(name)
    return replace(secrets, others=_others(data)), odd


def to_json(secrets: Secrets) -> dict[str, Any]:
    """Return the secrets as the file holds them: only what is set, and what is not known here as it was."""
    tree: dict[str, Any] = {k: dict(v) if k == "cloud" else v for k, v in secrets.others.items()}
    for name in SECRET_NAMES:
        if value := secret(secrets, name):
            section, _, key = name.rpartition(".")
            (tree.setdefault(section, {}) if section else tree)[key] = value
    return tree


def _at(data: Mapping[str, Any], name: str) -> Any:
    section, _, key = name.rpartition(".")
    inner = data.get(section) if section else data
    return inner.get(key) if isinstance(inner, Mapping) else None


def _others(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not known here, a whole "cloud" that is no object left out."""
    others = {k: v for k, v in data.items() if k not in (*SECRET_NAMES, "cloud")}
    cloud = data.get("cloud")
    if isinstance(cloud, Mapping) and (rest := {k: v for k, v in cloud.items() if f"cloud.{k}" not in SECRET_NAMES}):
        others["cloud"] = rest
    return others


# -- the token that huggingface_hub is given

HubSource = Literal["environment", "store", "login"]
_ENVIRONMENT_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")  # in the order of huggingface_hub's get_token
_ENVIRONMENT_WAYS = ("HF_OIDC_RESOURCE", *_ENVIRONMENT_TOKENS)


@dataclass(frozen=True, slots=True)
class HubAccess:
    """The token to hand to huggingface_hub; None where it finds one by itself, in the environment or in its login."""

    token: str | None = field(default=None, repr=False)
    source: HubSource = "login"

    @property
    def words(self) -> str:
        """Where the token comes from, as part of a sentence."""
        words: Mapping[HubSource, str] = {
            "environment": "the token in the environment (HF_TOKEN)",
            "store": "the token that is stored here",
            "login": "the login of huggingface_hub on this machine, if there is one",
        }
        return words[self.source]


def hub_access(secrets: Secrets, environment: Mapping[str, str] = os.environ) -> HubAccess:
    """Return which token Hugging Face is asked with: the environment's first, as huggingface_hub itself has it, then
    the stored one, then what `hf auth login` left.
    """
    if any(environment.get(name, "").strip() for name in _ENVIRONMENT_WAYS):
        return HubAccess(None, "environment")
    if secrets.huggingface_token:
        return HubAccess(secrets.huggingface_token, "store")
    return HubAccess()


def set_names(secrets: Secrets) -> Iterator[str]:
    """Yield the names of the values that are set."""
    return (name for name in SECRET_NAMES if secret(secrets, name))
