"""Hazards as errors, with their place in CUDA and PTX, the threads involved, and a hint."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gemmgen.emulator.demangling import demangled
from gemmgen.emulator.errors import (
    DivergentWarp,
    EmulatorError,
    InFlightRead,
    InFlightWrite,
    Instruction,
    OutOfBounds,
    RegisterInFlight,
    RegisterPoolMisuse,
    UnfinishedCopy,
)
from gemmgen.emulator.program import Program

MAX_HAZARDS = 8
"""The search stops after this many different errors."""
MAX_REPEATS = 200
"""The search stops after this many occurrences of errors, different or not."""


class HazardError(EmulatorError):
    """A kernel whose result depends on timing. `also` are the other hazards of the same launch.

    `place` is the element that it was first seen at (`tile[12]`), `count` at how many accesses of threads it was seen.
    `severity` is "error", "warning" (works on current hardware, or breaks no rule of CUDA) or "note" (harmless in this launch); a
    strict launch treats all as errors.
    """

    hint = ""
    severity = "error"

    def __init__(self, message: str, count: int = 1, place: str = "", **details: object) -> None:
        super().__init__(message, **details)  # type: ignore[arg-type]
        self.count = count
        self.place = place
        self.also: tuple[EmulatorError, ...] = ()
        self.ending: EmulatorError | None = None
        """The error that ended the launch; None if it ran to its end."""

    def alone(self) -> str:
        text = super().alone()
        if self.severity != "error":
            text = f"{self.severity}: {text}"
        if self.count > 1:
            text += f"\n  count {self.count} accesses"
        return f"{text}\n  hint  {self.hint}" if self.hint else text

    def __str__(self) -> str:
        parts = [self.alone()]
        for other in self.also:
            if other.source is None:
                other.source = self.source
            parts.append(str(other))
        return "\n".join(parts)


class UnwrittenRead(HazardError):
    """A lane read memory that nothing has written."""

    title = "read of unwritten memory"
    hint = "look for a store that is missing or masked off, a barrier that comes too early, or an index that reaches into padding"


class SharedRace(HazardError):
    """Two lanes access the same byte of shared memory, at least one of them writes, and nothing orders the accesses."""

    title = "shared memory race"
    hint = "put __syncthreads() between the two accesses, or __syncwarp() within one warp; shuffles and votes do not order memory accesses"


class LockstepRace(SharedRace):
    """Lanes of one warp pass data through volatile shared memory as if they ran in lockstep."""

    severity = "warning"
    hint = (
        "put __syncwarp() between the two accesses: lanes of a warp do not run in lockstep, and volatile does not make one lane wait for "
        "another; all lanes must read a value before one overwrites it"
    )


class GlobalRace(HazardError):
    """Two lanes access the same byte of global memory, at least one of them writes, and nothing orders the accesses."""

    title = "global memory race"
    hint = (
        "threads of one block need a barrier between the two; threads of different blocks need __threadfence() after the "
        "write and before the flag, an atomic or volatile flag, and __threadfence() after reading the flag"
    )


class UnfencedTicket(GlobalRace):
    """Data that another block has published with a fence and an atomic operation is read after that operation's result was seen, but
    without a fence in between."""

    title = "no fence after the ticket"
    severity = "warning"
    hint = (
        "put __threadfence() after the atomic operation that announces the data, or use an acquiring operation; the CUDA programming guide "
        "has a fence before the ticket only, which works on current GPUs, but the memory model requires both"
    )


class StaleRead(HazardError):
    """A load through the read-only path, ld.global.nc, of memory that this launch has written."""

    title = "read-only load of memory that the launch writes"
    hint = "const __restrict__ and __ldg() promise that nothing writes the memory while the kernel runs; remove them to get plain loads"


class UnfinishedStore(HazardError, UnfinishedCopy):
    """A block ends while an engine may still read its shared memory for a store."""

    title = "store in flight at the end of the block"
    code = "unfinished-copy"
    severity = "warning"
    hint = "execute cp.async.bulk.wait_group.read 0 in the committing thread before the block ends; GPUs do complete the store"


class PartialRegisterCount(HazardError, RegisterPoolMisuse):
    """The warps of a warpgroup have asked for different numbers of registers."""

    title = "setmaxnreg by a part of a warpgroup"
    code = "register-pool-misuse"
    severity = "warning"
    hint = "execute setmaxnreg in all warps of the warpgroup, before they diverge; GPUs change the count of each warp that executes it"


class ReloadedOperand(HazardError, RegisterInFlight):
    """The variable that a wgmma takes A from is overwritten while the operation is in flight."""

    title = "A registers reloaded under a wgmma in flight"
    code = "register-in-flight"
    hint = (
        "put wgmma.wait_group before the next load of A's registers, or use a second set of variables: the operation reads them until the "
        "wait; PTX has a copy here, but the assembler merges it with its source into one register"
    )


class ScopeRace(GlobalRace):
    """Threads of different blocks use an atomic operation whose scope is one block."""

    title = "scope too narrow"
    hint = "use device scope: atomicAdd() instead of atomicAdd_block(), or cuda::thread_scope_device"


class VolatileRace(HazardError):
    """Two threads access one variable through volatile pointers, at least one writes, and nothing orders the accesses."""

    title = "unordered volatile accesses"
    severity = "warning"
    hint = "use a barrier, an atomic operation or cuda::atomic_ref: volatile neither makes an access atomic nor orders it"


class SameValue(HazardError):
    """Several threads store the same value to one place, and nothing orders them."""

    title = "several threads store the same value"
    severity = "note"
    hint = "the result is right as long as the values are equal; an atomic operation makes the intent explicit"


class MissedBarrier(HazardError):
    """A barrier of the whole block that some of its threads never reach, because they have ended."""

    title = "barrier that not all threads reach"
    severity = "warning"
    hint = (
        "all threads of a block must reach __syncthreads(): guard the work between the barriers instead of returning early; hardware does "
        "not count threads that have ended, but CUDA does not guarantee this"
    )


class UndefinedRegister(HazardError):
    """A value that no instruction has computed reaches memory, an address or a branch."""

    title = "use of an uninitialised variable"
    hint = "give the variable a value on every path"


class MissingWarpgroupFence(HazardError):
    """No wgmma.fence lies between accesses to registers and the wgmma that uses those registers."""

    title = "missing wgmma.fence"
    hint = "let all threads of the warpgroup execute wgmma.fence after the last access to accumulators and A registers, before the wgmma"


class EarlyWarpgroupFence(HazardError):
    """Registers are accessed between a wgmma.fence and the wgmma that uses them. Compilers move such accesses there, too."""

    title = "wgmma.fence before an access to its registers"
    severity = "warning"
    hint = 'put an empty asm volatile with the registers as operands ("+f", "+r") right before the fence, to keep accesses before it'


class TensorRace(HazardError):
    """Two accesses to the same cells of tensor memory, at least one of which writes, and no order between them."""

    title = "race in tensor memory"
    hint = (
        "after a product, use tcgen05.commit on an mbarrier that the other thread waits for; after loads and stores, tcgen05.wait::ld or "
        "::st and an arrival that the other thread waits for"
    )


class LanesOfFirstWarp(HazardError):
    """A warp that loads or stores tensor memory at an address in the lanes of the first warp."""

    title = "lanes of another warp"
    hint = (
        "put the first lane of the warp's quarter, 32 times the warp's number in its warpgroup, into the address, as the PTX ISA requires; "
        "some public kernels omit it, so the launch continues with the warp's lanes"
    )


class TensorLoadInFlight(HazardError):
    """A lane touched a register that a tcgen05.ld, not yet waited for, is going to write."""

    title = "result of tcgen05.ld before its wait"
    hint = (
        "let the warp execute tcgen05.wait::ld before the first use; some public kernels rely on the assembler to wait, so the launch "
        "continues with the loaded value"
    )


class MissingTensorFence(TensorRace):
    """Accesses of different threads to tensor memory are synchronized without the fences of tcgen05."""

    title = "missing tcgen05 fence"
    hint = "put tcgen05.fence::before_thread_sync before the arrival or barrier, tcgen05.fence::after_thread_sync after the wait or barrier"


class MissingProxyFence(HazardError):
    """An engine reads or overwrites writes of threads, and no proxy fence lies in between."""

    title = "missing proxy fence"
    hint = "let the writing threads execute fence.proxy.async after their writes, before the barrier that the issuing thread waits at"


class CopyWithoutProxyFence(MissingProxyFence):
    """An engine reads or overwrites data written by cp.async, and no proxy fence lies in between."""

    title = "missing proxy fence after cp.async"
    severity = "warning"
    hint = (
        "let the copying threads execute fence.proxy.async after cp.async.wait_group, before the barrier: cp.async writes through the "
        "generic proxy, like ordinary stores; kernels without this fence are common and work on current GPUs"
    )


class RefillWithoutProxyFence(MissingProxyFence):
    """An engine overwrites shared memory that threads have read by ordinary loads, and no proxy fence lies in between. Reported only in
    strict launches."""

    title = "missing proxy fence before a refill"
    hint = (
        "let the reading threads execute fence.proxy.async before they release the buffer: a barrier orders their loads before the issue "
        "of the copy, but not before TMA's writes; kernels without this fence work on current GPUs"
    )


class MissingMapFence(HazardError):
    """A copy uses a tensor map that threads have changed; the change was not released or not acquired."""

    title = "missing fence of a changed tensor map"
    hint = (
        "let the thread that changes the map execute fence.proxy.tensormap::generic.release (tensormap.cp_fenceproxy includes it), and "
        "each block that uses the map fence.proxy.tensormap::generic.acquire [map], 128 before its first copy"
    )


class EarlyBarrierUse(HazardError):
    """A barrier is used where its initialisation need not be visible."""

    title = "barrier used before its initialisation is visible"
    hint = "put __syncthreads() after the initialisation, or a cluster barrier if other blocks use the mbarrier"


class MissingInitFence(HazardError):
    """TMA uses a barrier whose initialisation it need not see."""

    title = "missing fence after the initialisation of a barrier"
    hint = "let the initialising thread execute fence.mbarrier_init.release.cluster before the __syncthreads() or the cluster barrier"


class UnorderedLaunch(HazardError):
    """A launch that may start early accesses memory of the preceding launch without waiting for that launch."""

    title = "memory of the preceding launch, without a wait"
    hint = "execute griddepcontrol.wait (cudaGridDependencySynchronize()) before the first access, in the thread itself or before a barrier"


class UnfinishedLaunch(UnorderedLaunch):
    """A launch accesses memory of an earlier launch, and no launch in between has waited for that one."""

    hint = (
        "let a thread of the launch in between execute griddepcontrol.wait (cudaGridDependencySynchronize()): a wait for a launch that has "
        "not waited for its predecessor does not cover the predecessor"
    )


class OutlivingAccess(HazardError):
    """A block may end while others of its cluster still use its shared memory."""

    title = "shared memory of a block that may have ended"
    hint = "put a cluster barrier at the end of the kernel, executed by all blocks of the cluster"


class InactiveShuffle(HazardError):
    """A value that a shuffle took from a lane outside its mask, or from one that has ended, is used."""

    title = "shuffle from a lane that takes no part"
    hint = "every lane that supplies a value must execute the shuffle and be in its mask"


class StrayAccess(HazardError, OutOfBounds):
    """An access outside of all arrays, in a page of device memory that holds one, or between two variables in shared memory."""

    code = "out-of-bounds"
    hint = "a GPU performs this access without an error, so the launch continues; it reaches padding, or whatever else lies there"


class EarlyRead(HazardError, InFlightRead):
    """A read of shared memory that an asynchronous copy is going to write."""

    code = "in-flight-read"


class EarlyWrite(HazardError, InFlightWrite):
    """A write to shared memory that an asynchronous copy is going to write."""

    code = "in-flight-write"


class LaneOutsideMask(HazardError, DivergentWarp):
    """A lane executes a shuffle or a vote whose member mask leaves it out."""

    code = "divergent-warp"


SURVIVED: dict[type[EmulatorError], type[HazardError]] = {
    OutOfBounds: StrayAccess,
    InFlightRead: EarlyRead,
    InFlightWrite: EarlyWrite,
    DivergentWarp: LaneOutsideMask,
}
"""Errors that a GPU does not notice, as findings behind which the launch continues."""


class Findings:
    """Collects hazards, one for each array and pair of source lines (of instructions, where there are no source lines)."""

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self._hazards: dict[tuple[object, ...], HazardError] = {}
        self._repeats = 0
        self.are_enough = False
        """True once there are so many errors that the search stops; the launch continues without it."""

    def __bool__(self) -> bool:
        return any(hazard.severity == "error" for hazard in self._hazards.values())

    def add(self, hazard: HazardError) -> None:
        """Notes a hazard. Once the search has stopped nothing is noted: accesses are no longer recorded, so memory that
        engines still read would look unwritten."""
        if self.are_enough:
            return
        if self.strict:
            hazard.severity = "error"
        array = hazard.place.partition("[")[0]
        if re.search(r"\b(?:shared address|global offset) \d", array):
            array = re.sub(r"\d+", "", array)
        key = (type(hazard), array, _place(hazard.instruction), _place(hazard.other))
        known = self._hazards.setdefault(key, hazard)
        if known is not hazard:
            known.count += hazard.count
        if hazard.severity != "error":
            return
        self._repeats += 1
        if self._repeats >= MAX_REPEATS or sum(known.severity == "error" for known in self._hazards.values()) >= MAX_HAZARDS:
            self.are_enough = True

    def all(self) -> tuple[HazardError, ...]:
        """Findings, the worst first."""
        ranks = ("error", "warning", "note")
        return tuple(sorted(self._hazards.values(), key=lambda hazard: ranks.index(type(hazard).severity)))

    def error(self, last: EmulatorError | None = None) -> HazardError:
        """The first hazard, with all others, and with the error that ended the launch."""
        first, *others = self.all()
        first.also = (*others, *([last] if last is not None and last is not first else []))
        first.ending = last
        return first


def _place(instruction: Instruction | None) -> object:
    if instruction is None:
        return None
    if instruction.location is None:
        return instruction.line
    own = instruction.location.own()
    return own.file, own.line


def plain_name(symbol: str) -> str:
    """A variable as the CUDA source calls it: `_ZZ4gemmE6tile_a` is tile_a."""
    text = demangled(symbol)
    return symbol if text == symbol else re.split(r"::(?![^<]*>)", text)[-1]


def shared_place(program: Program, address: int, element_bytes: int) -> str:
    """`shared tile_a[33]`: the shared variable that holds an address, and the element in it."""
    best: tuple[int, str] | None = None
    for name, placed in program.symbols.items():
        if placed.variable.space == "shared" and placed.offset <= address and (best is None or placed.offset >= best[0]):
            best = (placed.offset, name)
    if best is None:
        return f"shared address {address - program.shared_start}"
    return _element(f"shared {plain_name(best[1])}", address - best[0], element_bytes)


def _element(name: str, offset: int, element_bytes: int) -> str:
    element, byte = divmod(offset, element_bytes)
    return f"{name}[{element}]" + (f" (its byte {byte})" if byte else "")


def global_place(names: Sequence[tuple[int, int, str]], offset: int, element_bytes: int) -> str:
    """`C[17]`: the region (start, stop, name) that holds an offset, and the element in it."""
    for start, stop, name in names:
        if start <= offset < stop:
            return _element(plain_name(name), offset - start, element_bytes)
    return f"global offset {offset}"
