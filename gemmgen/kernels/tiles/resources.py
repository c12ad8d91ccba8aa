"""Resources of a multiprocessor that the blocks of a kernel share: whether as many blocks fit as a spec asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.core.errors import Reason
from gemmgen.hardware.target import Architecture


@dataclass(frozen=True)
class ResidentBlocks:
    """Blocks resident on one multiprocessor, and the resources of each."""

    architecture: Architecture
    blocks: int
    threads: int
    """Threads of a block."""

    @property
    def shared_bytes(self) -> int:
        """Shared memory that one of them may take."""
        return self.architecture.shared_bytes_per_sm // self.blocks - self.architecture.reserved_shared_bytes_per_block

    @property
    def registers(self) -> int:
        """Registers that a thread may have."""
        return min(self.architecture.registers_per_thread, self.architecture.registers_per_sm // max(1, self.blocks * self.threads))

    @property
    def allocated_registers(self) -> int:
        """Registers in units of 8, by which they are allocated to the threads of a warp."""
        return self.registers // 8 * 8

    @property
    def described(self) -> str:
        """The number of blocks, as a noun."""
        return f"{self.blocks} block{'s' if self.blocks > 1 else ''}"

    def too_many_sums(self, sums: int, limit: int, field: str, hint: str) -> Iterator[Reason]:
        """The reason why ``sums`` registers that hold sums throughout the mainloop cannot all be registers, if so."""
        if sums >= limit:
            got = f"{sums} sums a thread"
            need = f"fewer than the {limit} registers of {self.described} of {self.threads} threads on an SM"
            yield Reason("registers", field, got, need, hint)

    def few_registers(self, estimate: int, limit: int, field: str) -> tuple[Reason, ...]:
        """A warning if an estimate of a thread's registers exceeds the limit."""
        if estimate <= limit:
            return ()
        need = f"no more than {limit}, those of {self.described} of {self.threads} threads on an SM"
        return (
            Reason(
                "registers",
                field,
                f"about {estimate} registers a thread by an estimate",
                need,
                "gemmgen compile shows whether some are spilled",
            ),
        )

    def too_many(self, shared: int, section: str = "") -> Iterator[Reason]:
        """Reasons why blocks cannot be launched with this shared memory, or too few at a time. ``section``: the part of a spec
        that has ``tile`` and ``min_blocks_per_sm``, with its dot."""
        architecture, blocks = self.architecture, self.blocks
        if shared > architecture.shared_bytes_per_block:
            need = f"at most {architecture.shared_bytes_per_block} bytes in a block on {architecture.name}"
            got, hint = f"{shared} bytes of shared memory", "reduce m, n, k or stages"
            yield Reason("shared_memory", f"{section}tile.threadblock", got, need, hint)
        reserved = architecture.reserved_shared_bytes_per_block
        if blocks > 1 and (shared + reserved) * blocks > architecture.shared_bytes_per_sm:
            got = f"{blocks} blocks of {shared} + {reserved} bytes of shared memory"
            need = f"at most {architecture.shared_bytes_per_sm} bytes on an SM of {architecture.name}"
            yield Reason("blocks_per_sm", f"{section}min_blocks_per_sm", got, need)
        if blocks * self.threads > architecture.threads_per_sm or blocks > architecture.blocks_per_sm:
            got = f"{blocks} blocks of {self.threads} threads"
            need = f"at most {architecture.blocks_per_sm} blocks and {architecture.threads_per_sm} threads on an SM of {architecture.name}"
            yield Reason("blocks_per_sm", f"{section}min_blocks_per_sm", got, need)

    def too_much_per_block(self, shared: int) -> Iterator[Reason]:
        """The reason why the stages of a tensor-core mainloop do not fit into shared memory, if so."""
        if shared > self.shared_bytes:
            got = f"{shared} bytes of shared memory"
            need = f"at most {self.shared_bytes} for {self.described} on an SM of {self.architecture.name}"
            yield Reason("shared_memory", "mainloop.stages", got, need, "fewer stages or a smaller tile")
