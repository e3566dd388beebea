"""The captioners and the maskers, one line each. Torch-free: the factories are named and imported when they run."""

from __future__ import annotations

from collections.abc import Mapping

from modules.annotators.captioners import (
    blip_base,
    blip_large,
    florence_2_base,
    florence_2_large,
    wd_eva02_large_v3,
    wd_swinv2_v3,
    wd_vit_v2,
    wd_vit_v3,
)
from modules.annotators.maskers import clipseg, colour, isnet, u2net, u2net_human
from modules.annotators.spec import CaptionerSpec, MaskerSpec

CAPTIONERS: Mapping[str, CaptionerSpec] = {
    spec.name: spec
    for spec in (
        wd_swinv2_v3.SPEC,
        wd_vit_v3.SPEC,
        wd_eva02_large_v3.SPEC,
        wd_vit_v2.SPEC,
        florence_2_base.SPEC,
        florence_2_large.SPEC,
        blip_base.SPEC,
        blip_large.SPEC,
    )
}

MASKERS: Mapping[str, MaskerSpec] = {
    spec.name: spec for spec in (u2net.SPEC, u2net_human.SPEC, isnet.SPEC, clipseg.SPEC, colour.SPEC)
}
