"""Templates as Jinja compiled them, kept on disk: compiling them takes longer than a kernel's rendering."""

from __future__ import annotations

from pathlib import Path

import jinja2
from jinja2.bccache import Bucket

from gemmgen.core.cache import Cache, cache_key, default_directory

FOLDER = "templates"
"""Within the compile cache's folder."""
_LIMIT_BYTES = 2**26
_FILE = "bytecode"


class CompiledTemplates(jinja2.BytecodeCache):
    """The cache of an environment with these options: a template counts as the same if all that its compilation depends on is."""

    def __init__(self, options: dict[str, object]) -> None:
        self._options = repr(sorted(options.items()))

    def get_bucket(self, environment: jinja2.Environment, name: str, filename: str | None, source: str) -> Bucket:
        """The bucket of the text that Jinja compiles: that of the file, after the extensions' changes."""
        return super().get_bucket(environment, name, filename, environment.preprocess(source, name, filename))

    def load_bytecode(self, bucket: Bucket) -> None:
        if (files := compiled_templates().load(self._key(bucket))) is not None and _FILE in files:
            bucket.bytecode_from_string(files[_FILE])

    def dump_bytecode(self, bucket: Bucket) -> None:
        compiled_templates().store(self._key(bucket), {_FILE: bucket.bytecode_to_string()})

    def _key(self, bucket: Bucket) -> str:
        return cache_key("template", jinja2.__version__, self._options, bucket.key, bucket.checksum)


def compiled_templates() -> Cache:
    """Proven on every read like all that gemmgen keeps; where it cannot be used, templates are compiled anew without a word."""
    return Cache(Path(default_directory()) / FOLDER, _LIMIT_BYTES, quiet=True)
