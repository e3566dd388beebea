"""secrets: tokens and passwords, stored where no config, log or model ever takes them along."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Callable

from modules.system.errors import DarkroomError
from modules.system.paths import from_caller, secrets_file
from modules.system.secrets import SECRET_FIELDS, SECRET_NAMES, Secrets, hub_access, secret, secret_error, with_secret
from modules.system.secrets_file import import_secrets, load_secrets, save_secrets
from trainer.cli import Verb
from trainer.cli.options import describe


def _list(_options: argparse.Namespace) -> int:
    secrets = _stored()
    width = max(len(name) for name in SECRET_NAMES)
    for field in SECRET_FIELDS:
        state = "set" if secret(secrets, field.name) else "-"
        sys.stdout.write(f"{field.name:{width}}  {state:3}  {field.label}\n")
    sys.stdout.write(f"Kept in {secrets_file()}, for you alone; never in a config.\n")
    sys.stdout.write(f"Hugging Face is asked with {hub_access(secrets).words}.\n")
    return 0


def _set(options: argparse.Namespace) -> int:
    if options.value:
        raise DarkroomError(
            "A secret on the command line stays in the shell's history and is seen by others: it was not taken.",
            advice=f"Leave it out and type it when asked, or pipe it in: ... secrets set {options.name} < FILE. What "
            "you typed is in the history now: delete it there, or make a new one.",
        )
    value = getpass.getpass(f"{options.name}: ") if sys.stdin.isatty() else sys.stdin.readline()
    if not value.strip():
        raise DarkroomError("Nothing was given.", advice=f"To take it away: secrets remove {options.name}.")
    if fault := secret_error(options.name, value):
        raise DarkroomError(fault)
    _save(with_secret(_stored(), options.name, value))
    sys.stdout.write(f"{options.name} is set.\n")
    return 0


def _remove(options: argparse.Namespace) -> int:
    stored = _stored()
    if not secret(stored, options.name):
        sys.stdout.write(f"{options.name} was not set.\n")
        return 0
    _save(with_secret(stored, options.name, ""))
    sys.stdout.write(f"{options.name} is removed.\n")
    return 0


def _import(options: argparse.Namespace) -> int:
    source = from_caller(options.file)
    secrets, names = import_secrets(source, _stored())
    _save(secrets)
    sys.stdout.write(f"Taken over: {', '.join(names)}.\n{source} still holds them; delete them there if you can.\n")
    return 0


def _stored() -> Secrets:
    loaded = load_secrets()
    for problem in loaded.problems:
        sys.stderr.write(describe(problem) + "\n")
    return loaded.secrets


def _save(secrets: Secrets) -> None:
    try:
        save_secrets(secrets)
    except OSError as error:
        message = f"{secrets_file()} could not be written: {error.strerror}."
        raise DarkroomError(message, advice="What was there before still stands.") from error


def _arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    def add(name: str, summary: str, act: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=summary, description=summary)
        action.set_defaults(act=act)
        return action

    add("list", "say which are set, never what they are", _list)
    setting = add("set", "set one; the value is asked for, or read from standard input", _set)
    setting.add_argument("name", choices=SECRET_NAMES, metavar="NAME", help=", ".join(SECRET_NAMES))
    setting.add_argument("value", nargs="*", help=argparse.SUPPRESS)  # to refuse it in a sentence that hides it
    removing = add("remove", "take one away", _remove)
    removing.add_argument("name", choices=SECRET_NAMES, metavar="NAME", help=", ".join(SECRET_NAMES))
    importing = add("import", "take over those of OneTrainer", _import)
    importing.add_argument("file", metavar="FILE", help="its secrets.json, or an old config with 'secrets' in it")


def _secrets(options: argparse.Namespace) -> int:
    code: int = options.act(options)
    return code


SECRETS = Verb("store tokens and passwords, or say which are set", _arguments, _secrets)
