"""clusterlaunchcontrol: a running block cancels the launch of a waiting cluster and takes over its work (sm_100 and later).

PTX ISA, "Parallel Synchronization and Communication Instructions: clusterlaunchcontrol". The answer is 16 bytes in shared memory, which
the asynchronous proxy writes when it likes, and then completes the transaction of a barrier. Its format is open; here it holds the
coordinates of the cluster's first block, and 1 if there is one.
"""

from __future__ import annotations

import numpy as np

from gemmgen.emulator.binding import Binder
from gemmgen.emulator.engines import Copy
from gemmgen.emulator.errors import ClusterMisuse, UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.bulk_copy import Ends, box_putter
from gemmgen.emulator.instructions.mbarrier import shared_offsets
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.warp import by_lanes, value_at
from gemmgen.emulator.instructions.wide import halves
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, Vector

_ANSWER_BYTES = 16
_AXES = ("x", "y", "z")
_NOBODY = 0xFFFFFFFF
"""Coordinate in an answer that nothing was cancelled, which the PTX ISA leaves open: no grid has such a block."""


@instruction("clusterlaunchcontrol", when=lambda inst: inst.has("try_cancel"))
def try_cancel(inst: Instruction, binder: Binder) -> Operation:
    """Asks for a cluster that has not started; with multicast, every block of the asking cluster gets the answer."""
    generic = not inst.has("shared::cta")
    answers = shared_offsets(inst, binder, inst.operands[0], _ANSWER_BYTES, generic)
    barriers = shared_offsets(inst, binder, inst.operands[1], 8, generic)
    ends, units = Ends(inst, binder), binder.spaces.shared.units

    def run(lanes: Lanes) -> None:
        everyone = (1 << binder.geometry.cluster_size) - 1 if inst.has("multicast::cluster::all") else None
        for lane in lanes.tolist():
            place = lane // binder.geometry.stride
            if (refusal := binder.engines.refused.get(place)) is not None:
                message = (
                    f"{inst.opcode}.try_cancel by {binder.geometry.describe_block(place)}, which has read that no cluster was cancelled"
                )
                raise ClusterMisuse(
                    f"{message}: it must not ask again", instruction=inst, threads=binder.geometry.describe(np.array([lane])), other=refusal
                )
        for lane, answer, barrier in zip(lanes.tolist(), answers(lanes).tolist(), barriers(lanes).tolist(), strict=True):
            targets = list(ends.targets(lane, answer, barrier, everyone))
            for _, signal in targets:
                ends.use_barrier(lane, signal)
            writes = [ends.writes(lane, np.array([target // _ANSWER_BYTES])) for target, _ in targets]
            put = box_putter(units, [access.chunks for access in writes], _ANSWER_BYTES)
            signals = [(signal, _ANSWER_BYTES) for _, signal in targets]
            ends.engines.copies.issue(Copy(inst, lane, take, put, None, writes, signals))

    def take() -> np.ndarray:
        block = binder.engines.claim_cluster()
        words = [_NOBODY, _NOBODY, _NOBODY, 0] if block is None else [*block, 1]
        return np.array(words, np.uint32).view(units[_ANSWER_BYTES].dtype)

    return by_lanes(binder, run)


@instruction("clusterlaunchcontrol", when=lambda inst: inst.has("query_cancel"))
def query_cancel(inst: Instruction, binder: Binder) -> Operation:
    """Reads an answer."""
    low, high = (binder.source(inst, half, "b64") for half in halves(inst, inst.operands[1]))

    def words(*values: np.ndarray) -> list[np.ndarray]:
        parts = [np.array(value, ndmin=1) for value in values]
        return [part >> np.uint64(shift) & np.uint64(_NOBODY) for part in parts for shift in (0, 32)]

    if inst.has("is_canceled"):
        target = binder.target(inst, inst.operands[0], "pred")
        _, some = binder.gathered([target], lambda *values: words(*values)[3] == 1, [low, high])

        def ask(lanes: Lanes) -> None:
            some(lanes)
            refused = lanes[words(value_at(low, lanes), value_at(high, lanes))[3] != 1]
            for place in np.unique(refused // binder.geometry.stride).tolist():
                binder.engines.refused.setdefault(place, inst)

        return by_lanes(binder, ask)
    if isinstance(inst.operands[0], Vector):
        targets = [binder.target(inst, register, "b32") for register in inst.operands[0].elements]
        return binder.gathered(targets, lambda *values: [word.astype(np.uint32) for word in words(*values)], [low, high])
    axis = next((i for i, name in enumerate(_AXES) if inst.has(f"get_first_ctaid::{name}")), None)
    if axis is None:
        raise UnknownInstruction("clusterlaunchcontrol.query_cancel asks is_canceled or get_first_ctaid", instruction=inst)
    target = binder.target(inst, inst.operands[0], "b32")
    return binder.gathered([target], lambda *values: words(*values)[axis].astype(np.uint32), [low, high])
