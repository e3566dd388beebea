"""The modules that a run imports while it is prepared, from the records of its choices.

They have tens of thousands of objects. Imported ahead of the run, these are frozen out of its collections.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator

from modules.adapters.registry import ADAPTERS
from modules.config.schema import Config
from modules.config.usage import method_of
from modules.optim.registry import optimizer_spec

_log = logging.getLogger(__name__)


def modules_of(config: Config) -> Iterator[str]:
    """Yield the names of the modules of a config's family, its parts, adapter, method, optimizer and log."""
    family, training = config.family, config.training
    references = [family.factory, family.files, *(part.model_class for part in family.parts)]
    if training.trains == "adapter":
        references.append(ADAPTERS[config.adapter.name].factory)
    references += [method_of(config).factory, optimizer_spec(training.optimizer).factory]
    for reference in references:
        if module := reference.partition(":")[0]:
            yield module
    if config.general.tensorboard:
        yield "torch.utils.tensorboard.summary"
        yield "tensorboard.summary.writer.record_writer"


def import_for(config: Config) -> bool:
    """Import the modules of a run; return whether any was new. One that cannot be imported is left to the run."""
    num_before = len(sys.modules)
    for name in dict.fromkeys(modules_of(config)):
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001 - the run reports it where it needs the module, or does without
            _log.info("%s cannot be imported ahead of the run", name, exc_info=True)
    return len(sys.modules) > num_before
