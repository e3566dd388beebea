"""The passes of a model: recordings that are known already, or traced now in another process."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Mapping
from typing import Any

from modules.estimate.passes import Passes
from modules.estimate.recordings import recordings_of
from modules.families.spec import FamilySpec
from trainer.child.process import spawn_python

logger = logging.getLogger(__name__)

# Errors while reading shapes from a malformed config.json: a missing key, a string or null instead of a number, a list
# instead of an object. Used only for that.
MALFORMED_CONFIG = (KeyError, TypeError, ValueError, IndexError, AttributeError)

_MOST_SECONDS = 300  # of a trace on a busy machine; usually it takes 10


def passes_of(spec: FamilySpec, configs: Mapping[str, Mapping[str, Any]]) -> Passes:
    """Return the passes of a model; a shape that is not known yet is traced, which takes several seconds.

    Raises ValueError if that fails, as for a config that is not valid, and KeyError if a part has no config.
    """
    known = recordings_of(spec, configs)
    missing = {part.name: configs[part.name] for part in spec.parts if part.name not in known}
    if missing:
        trace_in_child(spec, missing)
        known = recordings_of(spec, configs)
    if unknown := [name for name in missing if name not in known]:
        raise ValueError(f"The memory of {', '.join(unknown)} could not be estimated.")
    return Passes(spec, known)


def trace_in_child(spec: FamilySpec, configs: Mapping[str, Mapping[str, Any]]) -> None:
    """Trace the passes of these parts in another process, which needs torch, and wait until it has kept them."""
    request = json.dumps({"family": spec.name, "configs": configs})
    try:
        child = spawn_python(["-m", "modules.estimate.tracing"], subprocess.DEVNULL)
    except OSError as error:
        logger.warning("The trace of a model's passes did not start: %s", error)
        return
    with child:
        try:
            child.communicate(request, timeout=_MOST_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            logger.warning("The trace of a model's passes took too long.")
