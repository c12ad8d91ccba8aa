"""Instances that run on the host's processor: their library is loaded into this process."""

from gemmgen.runtime.native.backend import NativeBackend
from gemmgen.runtime.native.kernel import NativeKernel
from gemmgen.runtime.native.library import LoadedLibrary, loaded_library, require_host

__all__ = ["LoadedLibrary", "NativeBackend", "NativeKernel", "loaded_library", "require_host"]
