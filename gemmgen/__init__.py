"""gemmgen turns a short, checked description of a kernel into specialised CUDA, with the evidence that it is right."""

from __future__ import annotations

from gemmgen.core.version import __version__

TYPE_CHECKING = False  # as typing has it, which takes a while to import: an interrupt meanwhile would be a traceback

__all__ = ["Kernel", "__version__", "compile", "emulate", "epilogue", "for_problem", "load_spec", "plan", "render", "symbols", "verify"]

if TYPE_CHECKING:
    from gemmgen.api import compile, for_problem, load_spec, plan, render, verify
    from gemmgen.kernels.epilogue.tracing import Functions, epilogue
    from gemmgen.runtime.kernel import Kernel
    from gemmgen.sanitizer.api import emulate

    symbols: Functions


def __getattr__(name: str) -> object:
    """Imports the public functions when they are first used, so that importing the package costs nothing."""
    if name == "Kernel":
        from gemmgen.runtime.kernel import Kernel

        return Kernel
    if name == "emulate":
        from gemmgen.sanitizer.api import emulate

        return emulate
    if name in ("epilogue", "symbols"):
        from gemmgen.kernels.epilogue import tracing

        return tracing.epilogue if name == "epilogue" else tracing.Functions()
    if name in __all__:
        from gemmgen import api

        return getattr(api, name)
    raise AttributeError(f"module 'gemmgen' has no attribute {name!r}")
