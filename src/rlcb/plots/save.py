"""Write figures to files: the names that a command writes, and formats with text that stays text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlcb.errors import RunError, UsageError
from rlcb.files import write_atomically
from rlcb.plots.style import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
DPI = 150
UNDATED = {"svg": "Date", "pdf": "CreationDate"}  # without a date, equal figures are equal files


def picture_paths(output: Path, formats: Sequence[str] | None = None) -> list[Path]:
    """Return the files that a picture is written to: `output`, or one for each of `formats` with its suffix.

    Raises UsageError if `output` is a folder, or if its suffix tells no format and none is given.
    """
    if output.is_dir():
        raise UsageError(f"--output {output} is a folder; give the name of a file")
    known = output.suffix.lower().lstrip(".") in FORMATS
    if formats:
        base = output.with_suffix("") if known else output
        return [base.with_name(f"{base.name}.{name}") for name in dict.fromkeys(formats)]
    if not known:
        endings = ", ".join(f".{name}" for name in FORMATS)
        raise UsageError(f"--output {output}: the name must end in one of {endings}")
    return [output]


def save_figure(figure: Figure, output: Path) -> None:
    """Write a figure in the format of the suffix, completely or not at all. Raises RunError.

    Text in SVG and PDF files is text, which can be searched and edited: PDF embeds TrueType fonts, SVG names
    the font and a reader without it takes another sans-serif.
    """
    import matplotlib

    content, suffix = io.BytesIO(), output.suffix.lower().lstrip(".")
    with matplotlib.rc_context(STYLE):
        metadata = {UNDATED[suffix]: None} if suffix in UNDATED else None
        figure.savefig(content, format=suffix, dpi=DPI, metadata=metadata)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, content.getvalue())
    except OSError as error:
        raise RunError(f"cannot write {output}: {error.strerror or error}") from error
