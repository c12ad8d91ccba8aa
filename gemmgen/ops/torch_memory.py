"""Access to torch: its streams, its memory, and tensors to make results from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.kernels.requests import Result
from gemmgen.runtime.arrays.views import LEGACY_STREAM


@cache
def current_stream(torch: Any) -> Callable[[int], int]:
    """The handle of torch's current stream on a device."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return raw  # type: ignore[no-any-return]
    return lambda device: int(torch.cuda.current_stream(device).cuda_stream)


def kept_memory(torch: Any, ordinal: int) -> Callable[[int, int], tuple[Any, int]]:
    """Workspaces from torch's allocator, for use on any stream."""

    def allocate(size: int, stream: int) -> tuple[Any, int]:
        default = torch.cuda.default_stream(ordinal)
        with torch.cuda.stream(default if stream == LEGACY_STREAM else torch.cuda.ExternalStream(stream, device=ordinal)):
            memory = torch.empty(size, dtype=torch.uint8, device=f"cuda:{ordinal}")
        return memory, memory.data_ptr()

    return allocate


def captured_memory(torch: Any, ordinal: int) -> Callable[[int, int], tuple[Any, int]]:
    """Workspaces from the pool of the graph that torch captures, as temporary results of torch's own operations are."""

    def allocate(size: int, stream: int) -> tuple[Any, int]:
        memory = torch.empty(size, dtype=torch.uint8, device=f"cuda:{ordinal}")
        return memory, memory.data_ptr()

    return allocate


def templates(torch: Any, results: Sequence[Result], ordinal: int) -> tuple[Any, ...]:
    """A tensor like each result, with its strides but without its memory: torch makes others from that in half the time."""
    tensors = []
    for result in results:
        kind = torch.bool if result.truth else getattr(torch, ELEMENTS[result.type].word)
        template = torch.empty(result.shape, dtype=kind, device=f"cuda:{ordinal}")
        template.untyped_storage().resize_(0)
        tensors.append(template)
    return tuple(tensors)
