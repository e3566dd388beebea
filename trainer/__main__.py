"""The command line: `python -m trainer VERB ...`, the same configs and the same engine as the window.

    python -m trainer train CONFIG          CONFIG is a file, or the name of a preset such as '#demo'
    python -m trainer train CONFIG --family FAMILY    train its images on another model family
    python -m trainer train --recipe RUN    repeat a run from its recipe, and report whether the result is bit-equal
    python -m trainer resume RUN            RUN is a run's folder, one of its backups, or a workspace
    python -m trainer fork RUN              start a new run from a backup of RUN, with other settings
    python -m trainer report RUN            compare the losses of its images: which do not fit the others
    python -m trainer check CONFIG          list the errors and warnings of a config, and what the run would do
    python -m trainer doctor CONFIG         find images and captions that are probably wrong
    python -m trainer sample CONFIG         generate its samples, with a LoRA if one is given
    python -m trainer cache CONFIG          fill the caches and stop
    python -m trainer queue add CONFIG      queue configs, to train one after another; also run, list, remove, move
    python -m trainer remote add NAME       add a machine to train on over SSH; also check, list, attach, fetch, stop
    python -m trainer train CONFIG --on NAME          train on that machine; the run's folder appears here, too
    python -m trainer web                   a page in the browser: what trains, samples, commands, queue; --host 0.0.0.0
    python -m trainer inspect FILE          describe a model file or folder and list the programs that load it
    python -m trainer convert IN OUT        convert a model or a LoRA to another format or dtype
    python -m trainer caption FOLDER        write captions for its images with a model
    python -m trainer mask FOLDER           write masks for its images with a model
    python -m trainer export RUN --out FILE write a backup as a model that other programs load
    python -m trainer lora-merge MODEL OUT LORA[:STRENGTH] ...    merge LoRAs into a model
    python -m trainer lora-combine OUT LORA[:STRENGTH] ...        add and subtract LoRAs
    python -m trainer lora-resize LORA OUT --rank 16              change the ranks of a LoRA
    python -m trainer lora-extract BASE MODEL OUT --rank 32       write the difference of two models as a LoRA
    python -m trainer lora-blocks LORA OUT "down=1, mid=0.5"      scale a LoRA by block
    python -m trainer secrets list          list which tokens and passwords are set; also set, remove, import
    python -m trainer diff CONFIG [OTHER]   list the settings that differ from another config or the defaults
    python -m trainer diff RUN [RUN]        list what changed since the last finished run, or another one
    python -m trainer schema                print the config's JSON Schema, for editors; --markdown: every setting
    python -m trainer bundle [CONFIG]       collect a zip for a bug report: settings, versions, logs; no secrets

Any setting can be changed for one run with --set, as in --set training.epochs=20.
Exit codes of all verbs:
    0    done
    1    the work failed, or a part of it: a run, some of the images, a full disk, too little memory; the doctor found
         an error
    2    the command, its config, or a file, folder or machine that it names is wrong: change it and try again
    3    a repeated run has another result
    130  stopped by the user
"""

from __future__ import annotations

import argparse
import gc
import signal
import sys
from collections.abc import Mapping, Sequence

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback while it imports

from modules.system.factories import load_factory
from trainer.cli.program import WRONG, Verb, add_verbs, run_program, run_verb
from trainer.jobs.registry import JOBS

# The verbs besides the jobs, imported when they are used.
_VERBS: Mapping[str, str] = {
    "train": "trainer.cli.runs:TRAIN",
    "resume": "trainer.cli.runs:RESUME",
    "fork": "trainer.cli.runs:FORK",
    "report": "trainer.cli.runs:REPORT",
    "cache": "trainer.cli.cache:CACHE",
    "queue": "trainer.cli.queue:QUEUE",
    "remote": "trainer.cli.remote:REMOTE",
    "web": "trainer.cli.web:WEB",
    "secrets": "trainer.cli.secrets:SECRETS",
}
VERBS = (*(name for name in _VERBS if name != "secrets"), *JOBS, "secrets")
"""The names of all verbs, in the order of the help."""
# Former verbs that are now packages outside the program: the command of each.
_MOVED = {"benchmark": "python -m benchmarks", "make-demo-model": "python -m demo.make"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line and return its exit code. Its output contains no control characters of others."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and (command := _MOVED.get(given[0])):
        sys.stderr.write(f"{given[0]} is not part of the program any more. Use: {command}\n")
        return WRONG
    if given[:1] == ["job"]:  # for the window, so not among the verbs
        return run_verb("python -m trainer job", load_factory("trainer.cli.jobs:REQUEST"), given[1:])
    return run_program(lambda: _parser(given[:1]), given)


def _parser(first: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser for a command line with this first word: of that verb alone, else with the list of all."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [name for name in VERBS if name in first]
    add_verbs(parser, {name: _verb(name) for name in names or VERBS}, with_arguments=bool(names))
    return parser


def _verb(name: str) -> Verb:
    verb: Verb = load_factory(_VERBS[name]) if name in _VERBS else load_factory("trainer.cli.jobs:verb_of")(JOBS[name])
    return verb


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # else it is ignored, as for a shell's background process
        signal.signal(signal.SIGINT, signal.default_int_handler)
    exit_code = main()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C from now on ends it without a traceback
    gc.freeze()  # otherwise Python searches hundreds of megabytes for garbage before it ends
    sys.exit(exit_code)
