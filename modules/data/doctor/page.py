"""The findings as an HTML page with thumbnails: one file that loads nothing, neither from the disk nor the net."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from PIL import Image

from modules.data.decode import flatten
from modules.data.doctor.finding import Finding, printable, short_name
from modules.data.doctor.report import by_check, figure_of, images_of, summary_of
from modules.data.images import BrokenImageError, open_image, upright

MAX_FILES_SHOWN = 12  # of one finding, as thumbnails; the names of all are listed
_THUMBNAIL_PX = 160
_QUALITY = 75

Thumbnails = Mapping[Path, bytes]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin: 2.5rem 0 .2rem; } h2 small { font-weight: normal; opacity: .65; }
p.help { margin: 0 0 .8rem; opacity: .75; }
nav a { display: inline-block; margin: 0 1rem .3rem 0; }
article { border-left: 4px solid #888; padding: .5rem .9rem; margin: .7rem 0; background: rgba(128, 128, 128, .09); }
article.error { border-color: #d23b3b; } article.warning { border-color: #d9972b; }
article.info { border-color: #4b86c6; }
article p { margin: .25rem 0; } .figure { font-weight: 600; } .fix { opacity: .85; }
figure { display: inline-block; vertical-align: top; width: 168px; margin: .4rem .5rem .2rem 0; }
figure img { max-width: 160px; max-height: 160px; display: block; }
figure .none { display: block; height: 3.6rem; border: 1px dashed #888; text-align: center; line-height: 3.6rem; }
figcaption, li { font-size: 13px; overflow-wrap: anywhere; }
"""


def thumbnail(path: Path) -> bytes | None:
    """Return a small JPEG of an image without its metadata; None where it cannot be read."""
    try:
        with open_image(path) as raw:
            raw.draft(None, (2 * _THUMBNAIL_PX, 2 * _THUMBNAIL_PX))
            image = flatten(upright(raw))
    except BrokenImageError:
        return None
    image.thumbnail((_THUMBNAIL_PX, _THUMBNAIL_PX))
    content = io.BytesIO()
    Image.frombytes(image.mode, image.size, image.tobytes()).save(content, "JPEG", quality=_QUALITY)
    return content.getvalue()


def as_html(
    findings: Sequence[Finding],
    thumbnails: Thumbnails,
    *,
    title: str,
    num_images: int,
    num_validation_images: int,
    num_prompts: int = 0,
) -> str:
    """Return the page. Names are escaped, and its policy forbids scripts and every request."""
    body = "\n".join(_body(findings, thumbnails))
    images = images_of(num_images, num_validation_images, num_prompts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Dataset doctor: {_text(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Dataset doctor</h1>
<p>{_text(title)}: {images}; {summary_of(findings)}. Nothing was changed.</p>
{body}
</body>
</html>
"""


def _body(findings: Sequence[Finding], thumbnails: Thumbnails) -> Iterator[str]:
    sections = list(by_check(findings))
    links = (f'<a href="#{s.name}">{_text(s.label)} ({len(findings):,})</a>' for s, findings in sections)
    yield f"<nav>{' '.join(links)}</nav>"
    for spec, of_check in sections:
        yield f'<section id="{spec.name}"><h2>{_text(spec.label)} <small>{len(of_check):,}</small></h2>'
        yield f'<p class="help">{_text(spec.help)}</p>'
        for finding in of_check:
            yield _article(finding, thumbnails)
        yield "</section>"


def _article(finding: Finding, thumbnails: Thumbnails) -> str:
    shown, rest = finding.files[:MAX_FILES_SHOWN], finding.files[MAX_FILES_SHOWN:]
    figures = "".join(_figure(path, thumbnails.get(path)) for path in shown)
    names = "".join(f"<li>{_text(p)}</li>" for p in rest)
    more = f"<details><summary>{len(rest):,} more</summary><ul>{names}</ul></details>" if rest else ""
    return (
        f'<article class="{finding.severity}"><p>{_text(finding.reason)} '
        f'<span class="figure">{_text(figure_of(finding))}</span></p>'
        f'<p class="fix">{_text(finding.fix)}</p>{figures}{more}</article>'
    )


def _figure(path: Path, content: bytes | None) -> str:
    image = '<span class="none">no preview</span>'
    if content is not None:
        image = f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(content).decode("ascii")}">'
    return f'<figure title="{_text(path)}">{image}<figcaption>{_text(short_name(path))}</figcaption></figure>'


def _text(value: object) -> str:
    return escape(printable(value), quote=True)
