"""Templates of pages, and their common parts."""

from __future__ import annotations

import base64
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from gemmgen.present.web.colours import code_style


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gemmgen.present.web", "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data_uri"] = data_uri
    return environment


def data_uri(svg: str) -> str:
    """A picture as an address that holds it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def page(name: str, **values: object) -> str:
    """A page from the template ``name``."""
    return _environment().get_template(name).render(code_style=code_style(), **values)
