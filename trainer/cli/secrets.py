"""secrets: tokens and passwords, stored separately so that no config, log or model file contains them."""

from __future__ import annotations

import argparse
import getpass
import sys

from modules.system.errors import DarkroomError
from modules.system.paths import from_caller, secrets_file
from modules.system.secrets import SECRET_FIELDS, SECRET_NAMES, Secrets, hub_access, secret, secret_error, with_secret
from modules.system.secrets_file import import_secrets, load_secrets, save_secrets
from trainer.cli.program import Verb, verb_group
from trainer.jobs.config import describe


def _list(_options: argparse.Namespace) -> int:
    secrets = _load()
    width = max(len(name) for name in SECRET_NAMES)
    for field in SECRET_FIELDS:
        state = "set" if secret(secrets, field.name) else "-"
        sys.stdout.write(f"{field.name:{width}}  {state:3}  {field.label}\n")
    sys.stdout.write(f"Stored in {secrets_file()}, readable only by you; never in a config.\n")
    sys.stdout.write(f"Hugging Face is accessed with {hub_access(secrets).description}.\n")
    return 0


def _set(options: argparse.Namespace) -> int:
    if options.value:
        raise DarkroomError(
            "A secret on the command line stays in the shell's history and is visible to others. It was not saved.",
            advice=f"Leave it out and enter it at the prompt, or pipe it in: ... secrets set {options.name} < FILE. "
            "The value is now in the shell's history: delete it there, or create a new token.",
        )
    value = getpass.getpass(f"{options.name}: ") if sys.stdin.isatty() else sys.stdin.readline()
    if not value.strip():
        raise DarkroomError("No value was entered.", advice=f"To remove it: secrets remove {options.name}.")
    if error := secret_error(options.name, value):
        raise DarkroomError(error)
    save_secrets(with_secret(_load(), options.name, value))
    sys.stdout.write(f"{options.name} is set.\n")
    return 0


def _remove(options: argparse.Namespace) -> int:
    stored = _load()
    if not secret(stored, options.name):
        sys.stdout.write(f"{options.name} was not set.\n")
        return 0
    save_secrets(with_secret(stored, options.name, ""))
    sys.stdout.write(f"{options.name} is removed.\n")
    return 0


def _import(options: argparse.Namespace) -> int:
    source = from_caller(options.file)
    secrets, names = import_secrets(source, _load())
    save_secrets(secrets)
    sys.stdout.write(f"Imported: {', '.join(names)}.\n{source} still contains them; delete them there if possible.\n")
    return 0


def _load() -> Secrets:
    loaded = load_secrets()
    for problem in loaded.problems:
        sys.stderr.write(describe(problem) + "\n")
    return loaded.secrets


def _name_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=SECRET_NAMES, metavar="NAME", help=", ".join(SECRET_NAMES))


def _set_arguments(parser: argparse.ArgumentParser) -> None:
    _name_argument(parser)
    parser.add_argument("value", nargs="*", help=argparse.SUPPRESS)  # to reject it without printing it


def _import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="its secrets.json, or an old config that contains 'secrets'")


SECRETS = verb_group(
    "store tokens and passwords, or list which are set",
    {
        "list": Verb("list which secrets are set, without their values", lambda _parser: None, _list),
        "set": Verb("set a secret; its value is entered at a prompt or read from standard input", _set_arguments, _set),
        "remove": Verb("remove a secret", _name_argument, _remove),
        "import": Verb("import the secrets of OneTrainer", _import_arguments, _import),
    },
)
