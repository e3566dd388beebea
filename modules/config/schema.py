"""The config tree. Sections are frozen; `edit.set_path` makes an edited copy."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

from pydantic import ValidationInfo, field_validator

from modules.adapters.registry import ADAPTERS, DEFAULT_ADAPTER
from modules.adapters.settings import AN_ADAPTER, AdapterSection
from modules.config.sections.data import Data
from modules.config.sections.embeddings import Embeddings
from modules.config.sections.evaluation import Sampling, Validation
from modules.config.sections.general import General, MultiGpu
from modules.config.sections.masks import Masks
from modules.config.sections.model import Model, Part
from modules.config.sections.output import Backup, Output
from modules.config.sections.quantization import Quantization
from modules.config.sections.reward import Reward
from modules.config.sections.training import Training
from modules.data.concept import Concept
from modules.families.registry import FAMILIES
from modules.families.spec import FamilySpec, PartSpec
from modules.settings.field import MapKey, Section, Setting, advanced_setting
from modules.settings.lazy_variants import lazy_variants


class Config(Section):
    """All settings of a run.

    `remembered` keeps the settings of variants that are not selected: by path, variant name and field. `unknown` keeps
    the settings that a newer version or another program wrote, by path.
    """

    darkroom_version: Literal[7] = 7
    general: General = General.with_defaults()
    model: Model = Model.with_defaults()
    parts: Annotated[
        Mapping[str, Part],
        Setting("Parts of the model", "Whether each part is trained, at which learning rate and for how long."),
    ] = {}
    quantization: Quantization = Quantization.with_defaults()
    data: Data = Data.with_defaults()
    masks: Masks = Masks.with_defaults()
    concepts_file: Annotated[
        str,
        advanced_setting(
            "Concepts in a file",
            "A separate file with the concepts, so that several configs can share them. Relative to "
            "the config's folder.",
            group="Concepts",
            path_kind="file",
            empty_means="inside the config",
            changeable_on_resume=True,
        ),
    ] = ""
    concepts: Annotated[tuple[Concept, ...], Setting("Concepts", "The folders of images to train on.")] = ()
    training: Training = Training.with_defaults()
    adapter: Annotated[
        AdapterSection,
        *lazy_variants(ADAPTERS, DEFAULT_ADAPTER.name),
        Setting(
            "Adapter type",
            "The small trainable layers that are added to the model's own. LoRA loads everywhere.",
            group="Adapter",
            applies_when=AN_ADAPTER,
        ),
    ] = cast(AdapterSection, DEFAULT_ADAPTER.settings.with_defaults())
    embeddings: Embeddings = Embeddings.with_defaults()
    reward: Reward = Reward.with_defaults()
    validation: Validation = Validation.with_defaults()
    sampling: Sampling = Sampling.with_defaults()
    backup: Backup = Backup.with_defaults()
    output: Output = Output.with_defaults()
    multi_gpu: MultiGpu = MultiGpu.with_defaults()
    remembered: Mapping[str, Mapping[str, Mapping[str, Any]]] = {}
    unknown: Mapping[str, Any] = {}

    @field_validator("parts", mode="after")
    @classmethod
    def _with_defaults(cls, parts: Mapping[str, Part], info: ValidationInfo) -> Mapping[str, Part]:
        """Return the parts with the defaults of their own for the settings that have no value yet."""
        model: Model | None = info.data.get("model")  # None if it is not valid
        defaults = {} if model is None else {p.name: p.defaults for p in FAMILIES[model.family.name].parts}
        return {name: _with_own_defaults(part, defaults.get(name, {})) for name, part in parts.items()}

    def map_keys(self, field_name: str) -> Sequence[MapKey]:
        """Return the parts of the model's family; each has settings, also where the file contains none."""
        return self.family_parts if field_name == "parts" else ()

    @property
    def family(self) -> FamilySpec:
        """The record of the model's family, without the optional parts that the config leaves out."""
        left_out = {n for n, part in self.parts.items() if not part.include}
        return FAMILIES[self.model.family.name].of_variant(self.model.variant).without(left_out)

    @property
    def family_parts(self) -> tuple[PartSpec, ...]:
        """The parts of the model's family, with those that are left out.

        They are trainable as the settings have it: of a VAE only the VAE is.
        """
        used = {part.name for part in self.family.parts} - self.model.family.frozen_parts
        trains_vae = self.training.trains == "vae"
        return tuple(
            replace(part, trainable=part.name in used and (part.role == "vae" if trains_vae else part.trainable))
            for part in FAMILIES[self.model.family.name].of_variant(self.model.variant).parts
        )

    def part(self, name: str) -> Part:
        """Return the settings of one part of the model; its defaults if the file contains none."""
        return self.parts.get(name) or default_part(FAMILIES[self.model.family.name], name)


def default_part(family: FamilySpec, name: str) -> Part:
    """Return the settings of a part of a family's models that a file without it has."""
    return Part(**next((part.defaults for part in family.parts if part.name == name), {}))


def _with_own_defaults(part: Part, defaults: Mapping[str, Any]) -> Part:
    unset = {name: value for name, value in defaults.items() if name not in part.model_fields_set}
    return part.model_copy(update=unset) if unset else part
