"""Kernels made ready before the first call: a server compiles the kernels of later requests at its start."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gemmgen.core.errors import EnvironmentMissing, LaunchError, SpecError
from gemmgen.dispatch.devices import gpu_device
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import Option, choose
from gemmgen.hardware.target import Device
from gemmgen.hardware.target import device as find_device
from gemmgen.ops.engine import compiled, loaded
from gemmgen.toolchain.compilation import cached_plan


@dataclass(frozen=True)
class Warmed:
    """One problem, ready to be launched."""

    problem: str
    spec: str
    """Label of the spec that the kernel comes from."""
    name: str
    """Name of the instance."""
    seconds: float
    """Time of compilation; next to nothing if the cache had it."""
    kept: bool = True
    """False if the user's cache does not hold it, since it could not be written: another process would have to compile it anew."""


def warm(
    problems: Iterable[str], *, device: str | int | None = None, progress: Callable[[Warmed], None] = lambda one: None
) -> tuple[Warmed, ...]:
    """Chooses the kernels for problems and compiles them in parallel into the user's cache. A kernel that several problems share is
    compiled once.

    Parameters
    ----------
    problems
        Problems in words, such as ``gemm:4096,1,4096,nt,bf16``.
    device
        The ordinal of a GPU, by default the first, onto which the kernels are also loaded; or a name such as ``H200``, to fill a
        cache on a machine without that GPU.
    progress
        Called for each problem.

    Returns
    -------
    tuple of Warmed
        Each problem with its kernel.

    Raises
    ------
    SpecError
        If a text is not a valid problem.
    LaunchError
        If no kernel serves a problem.
    EnvironmentMissing
        If this machine has no GPU.
    """
    requests = [(text, parse_problem(text)) for text in problems]  # before a device is looked for: mistakes need none
    for text, request in requests:
        if request.is_empty:
            raise SpecError(f"{text}: the result is empty, so no kernel is launched")
    ordinal = None if isinstance(device, str) else device or 0
    try:
        target: Device = find_device(device) if isinstance(device, str) else gpu_device(ordinal or 0)
    except EnvironmentMissing as error:
        cause = str(error).partition(";")[0]
        raise EnvironmentMissing(
            f"{cause}; name the GPU to compile for: gemmgen warm --device H200, ops.warm(..., device='H200')"
        ) from None
    chosen: dict[str, tuple[list[str], Option]] = {}
    for text, request in requests:
        try:
            option = choose(request, target).chosen
        except LaunchError as error:
            raise LaunchError(f"{text}: {error}") from None
        chosen.setdefault(option.plan.name, ([], option))[0].append(text)

    def one(entry: tuple[list[str], Option]) -> list[Warmed]:
        texts, option = entry
        started = time.monotonic()
        compiled(option.plan)
        if ordinal is not None:
            loaded(option.plan, ordinal)
        seconds = time.monotonic() - started
        was_cached = cached_plan(option.plan) is not None
        of_choice = [Warmed(text, option.candidate.label, option.plan.name, seconds, was_cached) for text in texts]
        for warmed in of_choice:
            progress(warmed)
        return of_choice

    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        return tuple(warmed for of_choice in pool.map(one, chosen.values()) for warmed in of_choice)
