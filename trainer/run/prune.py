"""Removing the cache entries that configs no longer use: they are listed first, and removed on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from modules.config.schema import Config
from modules.config.usage import trained_embeddings
from modules.data.cache.digests import DigestIndex
from modules.data.cache.key import caption_key
from modules.data.cache.store import CacheStore, StoredEntry, remove_entries
from modules.data.datasets import Datasets
from modules.data.example import WantedCompanions
from modules.data.versions import ImageVersions, RejectedVersions
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.problem import count
from trainer.data.datasets import datasets_of
from trainer.data.image_keys import ImageKeys
from trainer.data.inputs import input_jobs
from trainer.data.masks import mask_files
from trainer.data.seen_captions import seen_references
from trainer.phases import PhaseFacts, phase_facts
from trainer.preflight import check
from trainer.run.data import stored_identities, texts_to_cache
from trainer.run.machine import machine_of
from trainer.run.model import encoder_identities

_LABELS = {"latents": "latents", "text": "text embeddings", "masks": "masks", "": "files of killed runs"}


@dataclass(frozen=True, slots=True)
class UnusedEntries:
    """The entries of a cache folder that are not in use, by kind, and the number and size of those that are."""

    entries: tuple[tuple[str, StoredEntry], ...]
    num_used: int
    used_bytes: int

    @property
    def used_summary(self) -> str:
        """The entries in use: their number and size."""
        return f"{count(self.num_used, 'entry', 'entries')}, {_size(self.used_bytes)}"

    @property
    def summary(self) -> str:
        """The entries that are not in use: their numbers and sizes by kind."""
        numbers = Counter(kind for kind, _ in self.entries)
        sizes: Counter[str] = Counter()
        for kind, entry in self.entries:
            sizes[kind] += entry.num_bytes
        return ", ".join(f"{_LABELS[kind]} ({n:,}, {_size(sizes[kind])})" for kind, n in sorted(numbers.items()))

    def remove(self) -> int:
        """Remove the entries and return their number; those that another program removed count, too."""
        remove_entries(entry for _, entry in self.entries)
        return len(self.entries)


def kinds_in_use(facts: PhaseFacts) -> frozenset[str]:
    """Return which caches a run uses: "latents" and "masks", "text"."""
    kinds = ["latents", "masks"] if facts.has_latent_cache else []
    return frozenset([*kinds, *(["text"] if facts.has_text_cache else [])])


def unused_entries(cache_dir: Path, used: Collection[str], kinds: Collection[str]) -> UnusedEntries:
    """Return the entries of a cache folder whose keys are not in `used`, and second copies of those that are.

    Entries of other kinds than `kinds` are left out: whether they are used is not known.
    """
    unused: list[tuple[str, StoredEntry]] = []
    num_used = used_bytes = 0
    for kind in sorted(kinds):
        seen = set[str]()
        for entry in CacheStore(cache_dir / kind).entries():
            if entry.key in used and entry.key not in seen:
                seen.add(entry.key)
                num_used, used_bytes = num_used + 1, used_bytes + entry.num_bytes
            else:
                unused.append((kind if entry.key else "", entry))
    return UnusedEntries(tuple(unused), num_used, used_bytes)


def unused_by(configs: Sequence[Config], *, names: Sequence[str] = ()) -> UnusedEntries:
    """Return the entries of the first config's cache folder that none of the configs uses. Reads their encoders.

    Kinds that the first config does not cache are left out. Raises DarkroomError for a config with errors, by its name
    if there are `names`: the entries of images that cannot be found at the moment would count as unused.
    """
    used: set[str] = set()
    kinds: frozenset[str] | None = None
    for config, name in zip_longest(configs, names):
        report = check(config)
        if report.errors or report.datasets is None:
            raise DarkroomError(
                f"The config{f' {name}' if name else ''} has errors, so the entries that it uses are not known. "
                f"{' '.join(e.message for e in report.errors)}",
                advice=" ".join(dict.fromkeys(e.advice for e in report.errors if e.advice)),
            )
        keys, of_config = keys_of(config, report.datasets)
        used |= keys
        kinds = of_config if kinds is None else kinds
    assert kinds is not None
    return unused_entries(from_root(configs[0].general.cache_dir), used, kinds)


def keys_of(config: Config, datasets: Datasets | None = None) -> tuple[set[str], frozenset[str]]:
    """Return the keys of all entries that a run of a config uses, and which caches it uses."""
    datasets = datasets or datasets_of(config)
    kinds = kinds_in_use(phase_facts(config))
    machine = machine_of(config.general, config.training.precision)
    identities = stored_identities(config.data, encoder_identities(config, machine))
    digests, keys = DigestIndex(from_root(config.general.cache_dir)), set[str]()
    run_seed, reads_training = datasets.settings.run_seed, datasets.settings.reads_images
    for dataset, reads_images in ((datasets.training, reads_training), (datasets.validation, True)):
        if "latents" in kinds and reads_images:  # then masks are cached, too
            versions = ImageVersions(dataset, run_seed, is_cached=True)
            keys |= _image_keys(config, versions, digests, datasets.settings.wanted, encoder=identities.images)
        if "text" in kinds:
            trained = [w.placeholder for w in trained_embeddings(config)]
            seen = seen_references(
                ImageVersions(dataset, run_seed, is_cached="latents" in kinds),
                datasets.settings.wanted.inputs if reads_images else (),
                config.family.seen_with_captions,
                digests,
                verify=config.data.verify_cache,
                check=lambda: None,
            )
            texts = texts_to_cache(
                dataset,
                text_encoder_trains=False,
                trained_tokens=trained,
                run_seed=run_seed,
                seen=seen,
                has_dropout=dataset is datasets.training and config.data.caption_dropout > 0,
            )
            keys.update(caption_key(caption=t, encoder=identities.captions) for t in texts)
    return keys, kinds


def _image_keys(
    config: Config, versions: ImageVersions, digests: DigestIndex, wanted: WantedCompanions, *, encoder: str
) -> set[str]:
    """Return the keys of a dataset's images, masks and further inputs, and of both images of a pair.

    `encoder` is the identity of the VAE.
    """
    verify, latent_factor = config.data.verify_cache, config.family.latents.factor
    image_keys = ImageKeys(versions, digests, encoder, verify, check=lambda: None).read_all()
    mask_keys: dict[tuple[int, int, int], str] = {}
    if wanted.masks:
        files = mask_files(versions, digests, latent_factor=latent_factor, verify=verify, check=lambda: None)
        mask_keys = {place: key for place, (key, _) in files.items()}
    keys = {*image_keys.values(), *mask_keys.values()}
    if versions.dataset.has_pairs:
        rejected = RejectedVersions(versions)
        keys.update(ImageKeys(rejected, digests, encoder, verify, check=lambda: None).read_all().values())
    for record in (i for i in wanted.inputs if i.delivery == "latents"):
        of_input = input_jobs(
            record,
            versions,
            digests,
            image_keys=image_keys,
            mask_keys=mask_keys,
            encoder=encoder,
            latent_factor=latent_factor,
            with_blank=record.follows_mask and config.masks.unmasked_probability > 0,
            verify=verify,
            check=lambda: None,
        )
        keys.update(job.key for job in of_input.values())
    return keys


def _size(num_bytes: int) -> str:
    if num_bytes < 1e6:
        return f"{num_bytes / 1e3:.1f} kB"
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:,.2f} GB"
