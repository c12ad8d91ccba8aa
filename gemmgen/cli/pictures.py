"""Pictures into files: SVG as it is drawn, PNG and PDF where CairoSVG is installed; and names of pages."""

from __future__ import annotations

from pathlib import Path

from gemmgen.cli.selection import write_output
from gemmgen.core.errors import EnvironmentMissing, GemmgenError
from gemmgen.core.extras import install_command

FORMS = (".svg", ".png", ".pdf")
PAGES = (".html", ".htm")


def require_form(path: Path) -> None:
    """Raises ``GemmgenError`` for a file whose name does not fit its contents, before anything is drawn."""
    if path.suffix.lower() not in FORMS:
        folder = "" if path.suffix else f", or {path}/ for a folder with an SVG of each"
        raise GemmgenError(f"{path}: unsupported format of pictures; use {', '.join(FORMS)}{folder}")


def require_page(path: Path) -> None:
    """Raises ``GemmgenError`` for a page whose name says that it is something else, before anything is compiled for it."""
    if path.suffix.lower() not in PAGES:
        raise GemmgenError(f"{path}: unsupported format of a page; use .html")


def write_picture(path: Path, svg: str) -> bool:
    """Writes a picture in the form that its name says; whether the file changed.

    Raises ``GemmgenError`` for a name that says none, ``EnvironmentMissing`` for one that needs CairoSVG where it is not installed.
    """
    require_form(path)
    form = path.suffix.lower()
    if form == ".svg":
        return write_output(path, svg)
    try:
        import cairosvg
    except (ImportError, OSError):  # the package, or the C library that it loads
        raise EnvironmentMissing(
            f"{path}: {form[1:].upper()} needs CairoSVG and the library cairo; get it with: {install_command('pictures')} "
            "(Debian: apt install libcairo2), or write an .svg"
        ) from None
    light = svg.replace("@media (prefers-color-scheme: dark)", "@media not all")
    convert = cairosvg.svg2png if form == ".png" else cairosvg.svg2pdf
    data: bytes = convert(bytestring=light.encode(), **({"scale": 2} if form == ".png" else {}))
    return write_output(path, data)
