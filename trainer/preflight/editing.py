"""The checks that are made while the user edits: they read no more than headers, and write nothing."""

from __future__ import annotations

from modules.config.schema import Config
from modules.system.problem import Problem
from trainer.preflight.images import problems_of_concept_folders, problems_of_sample_images
from trainer.preflight.missing_captions import problems_of_captions_files
from trainer.preflight.model import kind_of_model, problems_of_model
from trainer.preflight.places import problems_of_places
from trainer.preflight.requirements import problems_of_packages
from trainer.preflight.start_from import problems_of_start
from trainer.preflight.vae import problems_of_vaes


def problems_of_files(config: Config) -> list[Problem]:
    """Return the errors and warnings of the files, folders and packages that a config names.

    Whether the images themselves can be read, and how much memory a run needs, is checked at the start only. A concept
    that has no folder yet is still being added, so it is not reported here.
    """
    problems = [*problems_of_packages(config), *problems_of_places(config, tries_writing=False)]
    problems += problems_of_model(config, kind_of_model(config))
    problems += problems_of_vaes(config)
    problems += problems_of_start(config, has_copy=None)
    problems += problems_of_captions_files(config)
    problems += problems_of_sample_images(config)
    problems += [p for index, p in problems_of_concept_folders(config) if config.concepts[index].path.strip()]
    return [problem for problem in problems if problem.severity != "info"]
