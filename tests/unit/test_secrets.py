"""Tokens and passwords: who reads the file, what a crash or nonsense leaves of it, and that nothing shows a value."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.paths import secrets_file
from modules.system.redaction import MASK, RedactingFormatter, keep_secret, redact
from modules.system.secret_keys import without_secrets
from modules.system.secrets import (
    SECRET_NAMES,
    CloudSecrets,
    HubAccess,
    Secrets,
    from_json,
    guard,
    hub_access,
    secret,
    secret_error,
    set_names,
    to_json,
    with_secret,
)
from modules.system.secrets_file import import_secrets, load_secrets, save_secrets
from tests.unit.test_atomic import Calls, Dead
from trainer.__main__ import main

FULL = Secrets("hf_secretvalue", CloudSecrets("key-value", "pod-value", "host.value", "2222", "user-value", "/f", "pw"))
posix = pytest.mark.skipif(sys.platform == "win32", reason="there the folder is the user's alone")


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


# -- the record


def test_nothing_shows_a_value() -> None:
    shown = f"{FULL!r} {FULL} {FULL.cloud} {hub_access(FULL, {})!r} {[FULL]} {vars_text(FULL)}"
    assert not [name for name in SECRET_NAMES if len(secret(FULL, name)) > 3 and secret(FULL, name) in shown]
    assert "huggingface_token set" in shown
    assert "password set" in shown
    assert repr(Secrets()) == "Secrets(cloud=CloudSecrets())"


def vars_text(secrets: Secrets) -> str:
    """What a traceback that shows local variables would print."""
    return repr({"secrets": secrets, "cloud": secrets.cloud})


def test_values_by_name() -> None:
    secrets = Secrets()
    for number, name in enumerate(SECRET_NAMES, start=1):
        secrets = with_secret(secrets, name, f" {number}\n")
    assert [secret(secrets, name) for name in SECRET_NAMES] == [str(n) for n in range(1, len(SECRET_NAMES) + 1)]
    assert list(set_names(secrets)) == list(SECRET_NAMES)
    assert list(set_names(with_secret(secrets, "cloud.host", ""))) == [n for n in SECRET_NAMES if n != "cloud.host"]


texts = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Z"]), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
known_keys = [name.rpartition(".")[2] for name in SECRET_NAMES]


CHECKED = ("huggingface_token", "vision_model_api_key", "cloud.port", "web_token")


@given(st.dictionaries(st.sampled_from([n for n in SECRET_NAMES if n not in CHECKED]), texts))
def test_what_is_written_is_read(values: dict[str, str]) -> None:
    secrets = Secrets()
    for name, value in values.items():
        secrets = with_secret(secrets, name, value)
    assert from_json(json.loads(json.dumps(to_json(secrets)))) == (secrets, [])


@given(
    st.dictionaries(
        st.sampled_from(["huggingface_token", "cloud", "more"]),
        json_values | st.dictionaries(st.sampled_from([*known_keys, "else"]), json_values),
    )
)
def test_any_data_is_read_and_what_is_not_known_is_kept(data: dict[str, Any]) -> None:
    secrets, odd = from_json(data)
    assert all(secret_error(name, secret(secrets, name)) == "" for name in SECRET_NAMES)
    assert not set(odd) & set(set_names(secrets))
    written = to_json(secrets)
    assert from_json(written) == (secrets, [])
    if "more" in data:
        assert written["more"] == data["more"]


@pytest.mark.parametrize(
    ("name", "value", "is_fine"),
    [
        ("huggingface_token", "hf_AbC-1", True),
        ("huggingface_token", "two words", False),
        ("huggingface_token", "a\nb", False),
        ("huggingface_token", "tökén", False),
        ("vision_model_api_key", "sk-AbC-1", True),
        ("vision_model_api_key", "two\nlines", False),
        ("web_token", "0123456789_-abcd", True),
        ("web_token", "0123456789", False),
        ("web_token", "0123456789 abcdefgh", False),
        ("cloud.port", "22", True),
        ("cloud.port", "0", False),
        ("cloud.port", "65536", False),
        ("cloud.port", "9" * 5000, False),
        ("cloud.port", "²²", False),
        ("cloud.password", "any thing", True),
    ],
)
def test_an_invalid_token_is_reported_without_showing_it(name: str, value: str, is_fine: bool) -> None:
    fault = secret_error(name, value)
    assert (fault == "") == is_fine
    assert value not in fault


# -- the file


@posix
def test_the_file_is_the_owners_alone_from_its_first_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            seen.append(stat.S_IMODE(os.fstat(handle).st_mode))
        real(handle)

    opened: list[tuple[int, int]] = []
    real_open = os.open

    def opens(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if ".writing-" in str(path) and flags & os.O_CREAT:
            opened.append((flags, mode))
        return real_open(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", opens)
    monkeypatch.setattr(os, "fsync", fsync)
    before = os.umask(0)
    try:
        save_secrets(FULL)
    finally:
        os.umask(before)
    assert len(opened) == 1
    assert opened[0][0] & os.O_EXCL
    assert opened[0][1] == 0o600
    assert seen[0] == 0o600
    assert mode_of(secrets_file()) == 0o600


@posix
def test_a_file_readable_by_others_is_reported_and_fixed_by_the_next_save() -> None:
    save_secrets(FULL)
    secrets_file().chmod(0o644)
    loaded = load_secrets()
    assert loaded.secrets == FULL
    [problem] = loaded.problems
    assert problem.severity == "warning"
    assert "644" in problem.message
    assert "chmod 600" in problem.advice
    save_secrets(loaded.secrets)
    assert mode_of(secrets_file()) == 0o600
    assert load_secrets().problems == ()


@pytest.mark.parametrize("is_dead", [False, True])
@pytest.mark.parametrize("has_old", [False, True])
def test_a_fault_at_any_call_leaves_the_old_or_the_new(tmp_path: Path, is_dead: bool, has_old: bool) -> None:
    old = Secrets("hf_old_old_old") if has_old else Secrets()
    for fail_at in range(1, 100):
        file = tmp_path / str(fail_at) / "secrets.json"
        if has_old:
            save_secrets(old, file)
        with pytest.MonkeyPatch.context() as patch:
            calls = Calls(patch, fail_at=fail_at, is_dead=is_dead)
            with contextlib.suppress(Dead, OSError):
                save_secrets(FULL, file)
        loaded = load_secrets(file)
        assert loaded.secrets in (old, FULL), fail_at
        assert loaded.problems == ()
        if sys.platform != "win32":
            assert {mode_of(f) for f in file.parent.glob("*secrets*")} <= {0o600}
        save_secrets(old, file)
        assert [f.name for f in file.parent.iterdir()] == ["secrets.json"], "what a dead program left holds the token"
        if not calls.has_failed:
            assert fail_at > 3, "the calls were not counted"
            return
    raise AssertionError("it never came through")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'"hf_abcdefgh"', b"\xff\xfe\x00", b'{"huggingface_token": "hf_half', b"[" * 100_000],
    ids=lambda c: repr(c[:12]),
)
def test_nonsense_is_set_aside_and_said(content: bytes) -> None:
    secrets_file().parent.mkdir(parents=True)
    for name in ("secrets.json.bad", "secrets.json.bad2"):
        secrets_file().write_bytes(content)
        secrets_file().chmod(0o644)
        loaded = load_secrets()
        assert loaded.secrets == Secrets()
        [problem] = loaded.problems
        aside = secrets_file().with_name(name)
        assert str(aside) in problem.message
        assert "hf_" not in str(problem)
        assert aside.read_bytes() == content
        if sys.platform != "win32":
            assert mode_of(aside) == 0o600
        assert not secrets_file().exists()
        assert load_secrets().problems == ()


def test_a_folder_in_its_place_is_said() -> None:
    secrets_file().mkdir(parents=True)
    loaded = load_secrets()
    assert loaded.secrets == Secrets()
    assert "cannot be read" in loaded.problems[0].message


def test_a_value_of_another_kind_is_left_out_and_said() -> None:
    secrets_file().parent.mkdir(parents=True)
    secrets_file().write_text(json.dumps({"huggingface_token": ["hf_inalist"], "cloud": {"host": "h", "port": 22}}))
    secrets_file().chmod(0o600)
    loaded = load_secrets()
    assert (loaded.secrets.huggingface_token, loaded.secrets.cloud.host, loaded.secrets.cloud.port) == ("", "h", "22")
    [problem] = loaded.problems
    assert "huggingface_token" in problem.message
    assert "hf_inalist" not in str(problem)


def test_a_missing_file_means_no_secrets() -> None:
    loaded = load_secrets()
    assert (loaded.secrets, loaded.problems) == (Secrets(), ())
    assert not secrets_file().parent.exists()


# -- taking over OneTrainer's


def test_onetrainers_file_and_old_config_are_taken_over(tmp_path: Path) -> None:
    theirs = {"__version": 0, "huggingface_token": "hf_theirs", "cloud": {"__version": 0, "api_key": "k", "port": 0}}
    for data in (theirs, {"__version": 6, "cloud": {"enabled": True, "name": "x"}, "secrets": theirs}):
        (tmp_path / "file.json").write_text(json.dumps(data))
        secrets, names = import_secrets(tmp_path / "file.json", Secrets(cloud=CloudSecrets(host="mine", port="7")))
        assert names == ("huggingface_token", "cloud.api_key")
        assert (secrets.huggingface_token, secrets.cloud) == ("hf_theirs", CloudSecrets("k", host="mine", port="7"))


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"secrets": {"cloud": {"user": "root", "port": 0}}}', '{"cloud": 1}']
)
def test_a_file_without_any_is_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(DarkroomError, match="contains no tokens"):
        import_secrets(tmp_path / "file.json", FULL)
    with pytest.raises(DarkroomError, match="cannot be read"):
        import_secrets(tmp_path / "nowhere.json", FULL)


# -- kept out of configs


@pytest.mark.parametrize(
    "tree",
    [
        {"darkroom_version": 7, "secrets": {"huggingface_token": "hf_planted01"}},
        {"darkroom_version": 7, "huggingface_token": "hf_planted01"},
        {"darkroom_version": 7, "general": {"secrets": {"any": "hf_planted01"}}},
        {"darkroom_version": 7, "unknown": {"secrets": "hf_planted01", "general.secrets": "hf_planted01"}},
        {"darkroom_version": 7, "more": [{"wandb_api_key": "hf_planted01"}, {"Password": "hf_planted01"}]},
        {"__version": 6, "training_method": "LORA", "secrets": {"huggingface_token": "hf_planted01"}},
        {"__version": 3, "training_method": "LORA", "hf_token": "hf_planted01", "cloud": {"api_key": "hf_planted01"}},
        {"training_method": "LORA", "secrets": "hf_planted01"},
    ],
    ids=str,
)
def test_a_config_imports_none_and_names_the_command_that_does(tree: dict[str, Any]) -> None:
    """What is not known is kept in the config, and so was a token."""
    loaded = decode(tree)
    assert "hf_planted01" not in json.dumps(encode(loaded.config))
    assert not [p for p in loaded.problems if "hf_planted01" in str(p)]
    [note, *_] = [p for p in loaded.problems if "not imported into configs" in p.message]
    assert note.severity == "info"
    assert "secrets import FILE" in note.advice


@pytest.mark.parametrize("kept_under", ["theirs", "ours", "unknown"])
def test_what_opens_a_cloud_machine_is_not_kept_with_its_settings(kept_under: str) -> None:
    """The cloud settings of a file are kept unread; keys, passwords and how to reach the machine are not among them."""
    planted = {
        key: "planted01"
        for key in (
            "api_key", "runpod_token", "token", "password", "ssh_key", "passphrase", "id", "host", "port", "user",
            "key_file",
        )
    }  # fmt: skip
    cloud = {"enabled": True, "gpu_type": "A100", **planted, "more": {"deep": [{"token": "planted01"}]}}
    tree: dict[str, Any] = {
        "theirs": {"__version": 11, "training_method": "LORA", "cloud": cloud},
        "ours": {"darkroom_version": 7, "cloud": cloud},
        "unknown": {"darkroom_version": 7, "unknown": {"onetrainer": {"cloud": cloud}, "cloud.token": "planted01"}},
    }[kept_under]
    loaded = decode(tree)
    text = json.dumps(encode(loaded.config))
    assert "A100" in text
    assert "planted01" not in text
    said = [p for p in loaded.problems if "not imported into configs" in p.message]
    assert len(said) >= len(planted) + 1
    assert not [p for p in said if "planted01" in str(p)]


def test_a_group_of_secrets_that_onetrainer_writes_empty_needs_no_note() -> None:
    cloud = {"__version": 0, "api_key": "", "host": "", "port": 0, "user": "root", "password": ""}
    tree = {"secrets": {"__version": 0, "huggingface_token": "", "cloud": cloud}}
    assert without_secrets(tree) == ({}, [])
    assert without_secrets({"secrets": {"cloud": {**cloud, "host": "planted01"}}})[1]


def test_no_setting_of_ours_has_the_name_of_a_secret() -> None:
    tree = encode(Config())
    assert without_secrets(tree) == (tree, [])


@given(st.recursive(st.none() | st.text(max_size=9), lambda v: st.lists(v) | st.dictionaries(st.text(), v)))
def test_values_that_are_not_secret_stay(value: Any) -> None:
    tree = {"outer": value}
    kept, notes = without_secrets(tree)
    # One that is not set is removed without a note; hypothesis knows such names from the program's texts.
    is_named = any(part in str(tree).lower() for part in ("secret", "cloud.", "token", "password", "key"))
    assert kept == tree or notes or is_named


# -- which token Hugging Face is asked with


@pytest.mark.parametrize(
    ("stored", "environment", "token", "source"),
    [
        ("hf_stored", {}, "hf_stored", "store"),
        ("hf_stored", {"HF_TOKEN": "hf_env"}, None, "environment"),
        ("hf_stored", {"HUGGING_FACE_HUB_TOKEN": "hf_env"}, None, "environment"),
        ("hf_stored", {"HF_OIDC_RESOURCE": "me/it"}, None, "environment"),
        ("hf_stored", {"HF_TOKEN": " \n"}, "hf_stored", "store"),
        ("", {}, None, "login"),
    ],
)
def test_the_environment_goes_before_the_store(
    stored: str, environment: dict[str, str], token: str | None, source: str
) -> None:
    access = hub_access(Secrets(stored), environment)
    assert (access.token, access.source) == (token, source)
    assert "hf_" not in repr(access) + access.description


def test_the_hub_itself_takes_the_environment_first_and_a_given_token_before_its_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What `hub_access` counts on: None lets huggingface_hub choose, and its choice is the environment's."""
    from huggingface_hub.utils import build_hf_headers

    monkeypatch.setenv("HF_TOKEN", "hf_env")
    access = hub_access(Secrets("hf_stored"))
    assert build_hf_headers(token=access.token)["authorization"] == "Bearer hf_env"
    monkeypatch.delenv("HF_TOKEN")
    access = hub_access(Secrets("hf_stored"))
    assert build_hf_headers(token=access.token)["authorization"] == "Bearer hf_stored"


# -- taken out of texts


@pytest.mark.parametrize("value", ["hf_plain0123456", 'quo"te\\and\nline', "sp ace+sl/ash&more", "ümläute-güt"])
def test_a_known_secret_is_taken_out_in_every_form(value: str) -> None:
    from urllib.parse import quote, quote_plus

    keep_secret(value)
    forms = [value, repr(value), json.dumps(value), json.dumps(value, ensure_ascii=False), quote(value, safe="")]
    for form in [*forms, quote_plus(value), str(ValueError(value)), repr(ValueError(value))]:
        text = redact(f"before {form} after")
        assert MASK in text
        assert text.startswith("before ")
        assert text.endswith(" after")
        assert value not in text


def test_the_longer_of_two_is_taken_out_whole() -> None:
    keep_secret("abcdefgh-short", "abcdefgh-short-and-long")
    assert redact("x abcdefgh-short-and-long abcdefgh-short y") == f"x {MASK} {MASK} y"


def test_short_ones_and_those_that_open_nothing_stay() -> None:
    guard(Secrets("hf_tok1", CloudSecrets(user="long-user-name", host="long.host.name", password="long-password")), {})
    text = "hf_tok1 /home/long-user-name long.host.name"
    assert redact(text) == text
    assert redact("long-password") == MASK


def test_the_environments_token_is_taken_out_too() -> None:
    guard(Secrets(), {"HF_TOKEN": "hf_fromTheEnvironment", "HUGGING_FACE_HUB_TOKEN": "hf_itsOldName"})
    assert redact("hf_fromTheEnvironment, hf_itsOldName") == f"{MASK}, {MASK}"


def test_log_lines_and_tracebacks_hold_none() -> None:
    keep_secret("hf_inTheLog0123")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(RedactingFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        raise ValueError("with hf_inTheLog0123 in it")
    except ValueError:
        logger.exception("asked with %s", "hf_inTheLog0123")
    output = stream.getvalue()
    assert "hf_inTheLog0123" not in output
    assert output.count(MASK) == 3  # the message, the line of code, the error
    assert "Traceback" in output


# -- the hub


class Refusing:
    """A hub that answers every download with an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.tokens: list[object] = []

    def __call__(self, _name: str, *, token: object, **_: Any) -> str:
        self.tokens.append(token)
        raise self.error


def hub_error(kind: str, code: int) -> Exception:
    from types import SimpleNamespace

    import huggingface_hub.errors as errors

    error = getattr(errors, kind).__new__(getattr(errors, kind))
    error.args = ("Bearer hf_secretvalue",)
    error.response = SimpleNamespace(status_code=code)
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        ("GatedRepoError", 403, "accept its terms"),
        ("RepositoryNotFoundError", 401, "is private and needs a token"),
        ("HfHubHTTPError", 401, "did not accept the token"),
        ("HfHubHTTPError", 403, "did not accept the token"),
        ("HfHubHTTPError", 500, "not on this machine"),
    ],
)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_repository_that_needs_a_token_names_where_to_enter_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, code: int, said: str, is_wrapped: bool
) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    from modules.formats.diffusers_folder import locate

    error = hub_error(kind, code)
    if is_wrapped:  # as where the answer to the first question is no, and nothing is in the cache
        wrapper = LocalEntryNotFoundError("nothing here")
        wrapper.__cause__ = error
        error = wrapper
    hub = Refusing(error)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    access = HubAccess("hf_secretvalue", "store")
    with pytest.raises(DarkroomError, match=said) as caught:
        locate("somebody/something", offline=False, cache_dir="", hub=access)
    assert hub.tokens == ["hf_secretvalue"]
    assert "hf_secretvalue" not in str(caught.value)
    if code != 500:
        assert "the token stored in Darkroom" in caught.value.message
        assert "Tokens… in the presets menu" in caught.value.advice


# -- the command line


def test_secrets_are_set_listed_removed_and_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO("hf_fromStdin01\n"))
    assert main(["secrets", "set", "huggingface_token"]) == 0
    assert load_secrets().secrets.huggingface_token == "hf_fromStdin01"
    capsys.readouterr()
    assert main(["secrets", "list"]) == 0
    listed = capsys.readouterr().out
    assert "hf_fromStdin01" not in listed
    states = [line.split()[1] for line in listed.splitlines() if line.startswith(SECRET_NAMES)]
    assert states == ["set", *"-" * (len(SECRET_NAMES) - 1)]
    assert "the token stored in Darkroom" in listed
    (tmp_path / "theirs.json").write_text('{"secrets": {"huggingface_token": "hf_theirs0001", "cloud": {"id": "pod"}}}')
    assert main(["secrets", "import", str(tmp_path / "theirs.json")]) == 0
    assert load_secrets().secrets == Secrets("hf_theirs0001", CloudSecrets(id="pod"))
    assert main(["secrets", "remove", "huggingface_token"]) == 0
    assert load_secrets().secrets == Secrets(cloud=CloudSecrets(id="pod"))
    assert main(["secrets", "remove", "huggingface_token"]) == 0
    output = capsys.readouterr()
    assert "was not set" in output.out
    assert "hf_" not in output.out + output.err


@pytest.mark.parametrize(
    ("arguments", "typed", "said"),
    [
        (["set", "huggingface_token", "hf_onTheLine01"], "", "stays in the shell's history"),
        (["set", "huggingface_token"], "\n", "No value was entered"),
        (["set", "huggingface_token"], "two words\n", "no spaces"),
        (["set", "cloud.port"], "many\n", "from 1 to 65535"),
        (["import", "nowhere.json"], "", "cannot be read"),
    ],
)
def test_a_wrong_command_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    typed: str,
    said: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert main(["secrets", *arguments]) == 2
    output = capsys.readouterr()
    assert said in output.err
    assert "hf_onTheLine01" not in output.err + output.out
    assert not secrets_file().exists()


def test_a_person_types_it_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", lambda prompt: f"typed-at-{prompt.strip(' :')}")
    assert main(["secrets", "set", "cloud.password"]) == 0
    assert load_secrets().secrets.cloud.password == "typed-at-cloud.password"
