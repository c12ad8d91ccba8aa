"""clusterlaunchcontrol: every tile is done once, whoever does it, and an answer counts only when it has arrived."""

import numpy as np
import pytest

from gemmgen import emulator

from ..helpers import run_cuda, run_instruction

WAIT = "w: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra w;"
READ = {
    "wide": "ld.shared.b128 r, [%4];",
    "halves": "{ .reg .b64 x, y; ld.shared.v2.b64 {x, y}, [%4]; mov.b128 r, {x, y}; }",
}


def kernel(wait: str = WAIT, read: str = READ["wide"], multicast: str = "", cluster: int = 1) -> str:
    """Blocks count the tiles of their clusters; the first block of a cluster asks for further ones."""
    return f"""extern "C" __global__ void __cluster_dims__({cluster}) kernel(int* done, int* stolen) {{
      __shared__ __align__(16) unsigned answer[4];
      __shared__ __align__(8) unsigned long long barrier;
      unsigned a = (unsigned)__cvta_generic_to_shared(answer), b = (unsigned)__cvta_generic_to_shared(&barrier), rank;
      asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
      if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(b) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster; barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
      unsigned tile = blockIdx.x + gridDim.x * blockIdx.y;
      for (int phase = 0;; phase ^= 1) {{
        if (threadIdx.x == 0) asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 16;" :: "r"(b) : "memory");
        asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
        if (threadIdx.x == 0 && ({int(not multicast)} || rank == 0)) {{
          asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
          asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{multicast}.b128 [%0], [%1];"
            :: "r"(a), "r"(b) : "memory");
        }}
        if (threadIdx.x == 0) atomicAdd(&done[tile], 1);
        asm volatile("{{ .reg .pred p; {wait} }}" :: "r"(b), "r"(phase) : "memory");
        unsigned ok, x, y, z;
        asm volatile("{{ .reg .pred p; .reg .b128 r; {read}"
          "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, r; selp.u32 %0, 1, 0, p;"
          "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%1, %2, %3, _}}, r; }}"
          : "=r"(ok), "=r"(x), "=r"(y), "=r"(z) : "r"(a) : "memory");
        __syncthreads();
        if (!ok) break;
        if (threadIdx.x == 0) atomicAdd(stolen, 1);
        tile = x + rank + gridDim.x * y;
      }}
    }}"""


def launch(source: str, grid, architecture: str = "compute_100", **kwargs) -> tuple[np.ndarray, int]:
    done, stolen = np.zeros(grid[0] * grid[1], np.int32), np.zeros(1, np.int32)
    run_cuda(source, "kernel", grid, 64, [done, stolen], architecture, **kwargs)
    return done, int(stolen[0])


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("schedule", [None, emulator.RandomWarps(3)])
def test_every_tile_is_done_once(schedule, read):
    done, stolen = launch(kernel(read=READ[read]), (7, 5), **({} if schedule is None else {"schedule": schedule}))
    assert (done == 1).all()
    assert 0 < stolen < 35


def test_a_whole_cluster_takes_over_another_one():
    source = kernel(multicast=".multicast::cluster::all", cluster=2)
    done, stolen = launch(source, (8, 3), "compute_100a")
    assert (done == 1).all()
    assert stolen > 0 and stolen % 2 == 0


def test_nothing_is_left_where_all_blocks_run():
    done, stolen = launch(kernel(), (1, 1))
    assert done.tolist() == [1] and stolen == 0


def test_an_answer_that_has_not_arrived_is_not_read():
    with pytest.raises(emulator.EmulatorError, match="asynchronous operation is going to write"):
        launch(kernel(wait=""), (7, 5))


def test_bytes_of_a_word_are_unpacked():
    words = np.array([0x01020304, 0xFFFEFDFC], np.uint32)
    statement = "{ .reg .b8 p, q, r, s; mov.b32 {p, q, r, s}, %a; mov.b32 %d, {s, r, q, p}; }"
    assert run_instruction(statement, "u32", ("u32", words)).tolist() == [0x04030201, 0xFCFDFEFF]
