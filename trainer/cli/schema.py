"""schema: the config as a JSON Schema for editors, as a document of every setting, or a table of the optimizers."""

from __future__ import annotations

import argparse
import json
import sys

from modules.config.json_schema import json_schema
from modules.config.optimizers_doc import optimizers_document
from modules.config.settings_doc import settings_document
from modules.system.atomic import write_text
from modules.system.paths import from_caller
from trainer.cli import Verb


def schema_text() -> str:
    """Return the JSON Schema as the text of its file."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _schema(options: argparse.Namespace) -> int:
    text = optimizers_document() if options.optimizers else settings_document() if options.markdown else schema_text()
    if options.output:
        write_text(from_caller(options.output), text)
    else:
        sys.stdout.write(text)
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    documents = parser.add_mutually_exclusive_group()
    documents.add_argument("--markdown", action="store_true", help="print a Markdown document of every setting instead")
    documents.add_argument("--optimizers", action="store_true", help="print a Markdown table of the optimizers instead")
    parser.add_argument("--output", metavar="FILE", help="write to a file instead of standard output")


SCHEMA = Verb("print the config's JSON Schema, for completion in editors", _arguments, _schema)
