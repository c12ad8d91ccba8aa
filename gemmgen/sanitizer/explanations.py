"""Pages on the findings: the meaning, a minimal example, and the fix of each."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.sanitizer.findings import code_of
from gemmgen.sanitizer.source import UnusableInput


@dataclass(frozen=True)
class Explanation:
    """The page of one code. The example consists of statements that have the finding; `fixed` is their fix."""

    code: str
    title: str
    meaning: str
    example: str
    remedy: str
    fixed: str

    def __str__(self) -> str:
        indented = ("\n".join(f"    {line}" for line in text.strip().splitlines()) for text in (self.example, self.fixed))
        wrong, right = indented
        return f"{self.title} [{self.code}]\n\n{self.meaning}\n\n{wrong}\n\n{self.remedy}\n\n{right}\n"


_PAGES = (
    Explanation(
        "shared-race",
        "shared memory race",
        "Two threads of a block touch one byte of shared memory, at least one of them writes, and no barrier orders the two. Which "
        "comes first is a matter of luck, even if today's result is right. Shuffles and votes order no memory.",
        "__shared__ int s[64];\ns[threadIdx.x] = in[threadIdx.x];\nout[threadIdx.x] = s[63 - threadIdx.x];",
        "Put a barrier between the two: __syncthreads() for the block, __syncwarp() if the threads are of one warp.",
        "__shared__ int s[64];\ns[threadIdx.x] = in[threadIdx.x];\n__syncthreads();\nout[threadIdx.x] = s[63 - threadIdx.x];",
    ),
    Explanation(
        "global-race",
        "global memory race",
        "Two threads touch one byte of global memory, at least one of them writes, and nothing orders them. Threads of one block are "
        "ordered by barriers; threads of different blocks only by a release and an acquire: a fence before a strong write, a strong "
        "read that sees it, and a fence after that. The first read of a compare-and-swap loop is no race: the swap checks it. What is read "
        "beside the swapped word is not checked: a pop that reads top->next while another thread pops the node and pushes it again is a "
        "race (and the swap may succeed on a node that came back); make next atomic, and count the changes in the upper half of head.",
        "sum[blockIdx.x] += in[blockIdx.x * blockDim.x + threadIdx.x];",
        "Let each thread write separate elements, or use atomic operations.",
        "atomicAdd(&sum[blockIdx.x], in[blockIdx.x * blockDim.x + threadIdx.x]);",
    ),
    Explanation(
        "lockstep-race",
        "lanes that rely on lockstep",
        "Lanes of one warp pass data through volatile shared memory without a barrier. That worked while lanes ran in lockstep; since "
        "Volta they do not. A warning, and an error by strict rules.",
        "volatile int* s = shared;\nif (t < 16) s[t] += s[t + 16];\nif (t < 8) s[t] += s[t + 8];",
        "__syncwarp() between the steps; or shuffles.",
        "volatile int* s = shared;\nif (t < 16) s[t] += s[t + 16];\n__syncwarp();\nif (t < 8) s[t] += s[t + 8];",
    ),
    Explanation(
        "scope-race",
        "scope too narrow",
        "Threads of different blocks meet in an atomic operation that holds for the threads of one block only: updates may be lost.",
        "atomicAdd_block(counter, 1);  // all blocks count with one counter",
        "Use an operation of device scope.",
        "atomicAdd(counter, 1);",
    ),
    Explanation(
        "volatile-race",
        "unordered volatile accesses",
        "Two threads touch one variable through volatile accesses, one writes, and nothing orders them. PTX performs such accesses "
        "whole, C++ calls them a data race. A flag that a thread polls in a loop is not reported. A warning; an error with --strict.",
        "volatile int* f = flag;\nif (blockIdx.x == 0) *f = 1;\nout[blockIdx.x] = *f;",
        "Order the two by a barrier, or use atomic operations or cuda::atomic_ref.",
        "if (blockIdx.x == 0) atomicExch(flag, 1);\nout[blockIdx.x] = atomicAdd(flag, 0);",
    ),
    Explanation(
        "same-value",
        "several threads store the same value",
        "Threads store one value to one place, and nothing orders them: the usual flag that says `found`. No harm is done as long as "
        "the values are equal, so this is a note; by strict rules it is an error.",
        "if (a[threadIdx.x] > 0) *found = 1;",
        "No fix is required; an atomic operation, or a store by one thread, makes the intent explicit.",
        "if (__syncthreads_or(a[threadIdx.x] > 0) && threadIdx.x == 0) *found = 1;",
    ),
    Explanation(
        "missed-barrier",
        "barrier that not all threads reach",
        "Some threads of the block have returned before a __syncthreads() that the others wait at. Hardware does not count threads "
        "that have ended; CUDA demands that all threads of the block reach the barrier. A warning; an error by strict rules.",
        "if (threadIdx.x >= n) return;\ns[threadIdx.x] = a[threadIdx.x];\n__syncthreads();",
        "Guard the work, not the barrier.",
        "if (threadIdx.x < n) s[threadIdx.x] = a[threadIdx.x];\n__syncthreads();",
    ),
    Explanation(
        "unwritten-read",
        "read of unwritten memory",
        "A thread reads memory that nothing has written: shared memory before its store, an element that a loop leaves out, or an "
        "array that the launch was given without content (f32[64] in place of f32[64]=zeros).",
        "__shared__ int s[64];\nif (threadIdx.x < 63) s[threadIdx.x] = 1;\n__syncthreads();\nout[threadIdx.x] = s[threadIdx.x];",
        "Write what is read: look for a store that is masked off, a barrier too early, or an index into padding.",
        "__shared__ int s[64];\ns[threadIdx.x] = threadIdx.x < 63 ? 1 : 0;\n__syncthreads();\nout[threadIdx.x] = s[threadIdx.x];",
    ),
    Explanation(
        "undefined-register",
        "use of an uninitialised variable",
        "A local variable without a value decides a branch, an address or a result.",
        "float sum;\nfor (int i = 0; i < n; ++i) sum += a[i];",
        "Give the variable a value on every path.",
        "float sum = 0.0f;\nfor (int i = 0; i < n; ++i) sum += a[i];",
    ),
    Explanation(
        "inactive-shuffle",
        "shuffle from a lane that takes no part",
        "A lane takes a value, by a shuffle, from a lane that its mask leaves out or that has ended; the value is undefined, and it "
        "is used.",
        "if (threadIdx.x < 16) v = __shfl_sync(0xffff, v, 20);",
        "Let all lanes take part that give or take a value, and cut the mask and the distance to those.",
        "v = __shfl_sync(0xffffffff, v, 20);",
    ),
    Explanation(
        "out-of-bounds",
        "out of bounds",
        "An access to memory that belongs to no array, no variable and no shared allocation. Guards lie around every array and "
        "between the shared arrays of a kernel, so that an overrun does not go unseen where another array follows.",
        "int i = blockIdx.x * blockDim.x + threadIdx.x;\ny[i] = x[i];  // with more threads than elements",
        "Guard the access, or launch fewer threads.",
        "int i = blockIdx.x * blockDim.x + threadIdx.x;\nif (i < n) y[i] = x[i];",
    ),
    Explanation(
        "misaligned",
        "misaligned address",
        "An address that is no multiple of the width of the access: a vector load at an odd element.",
        "float4 v = *(const float4*)(x + 1);",
        "Align the address, or load elements.",
        "float4 v = make_float4(x[1], x[2], x[3], x[4]);",
    ),
    Explanation(
        "read-only",
        "write to read-only memory",
        "A store to constant memory, to a kernel parameter or to an array that may only be read.",
        "float* p = n > 0 ? weights : y;  // weights is __constant__\np[0] = 1.0f;",
        "Write to global, shared or local memory.",
        "float* p = y;\np[0] = n > 0 ? weights[0] : 1.0f;",
    ),
    Explanation(
        "divergent-barrier",
        "divergent barrier",
        "A barrier that only a part of a block or of a warp reaches, or lanes of one warp that wait at different barriers.",
        "if (threadIdx.x % 2) __syncthreads();\nelse { work(); __syncthreads(); }",
        "Move the barrier out of the branches.",
        "if (threadIdx.x % 2 == 0) work();\n__syncthreads();",
    ),
    Explanation(
        "divergent-warp",
        "divergent warp",
        "A warp-synchronous operation whose mask names lanes that never come, or leaves out the lane that executes it.",
        "if (threadIdx.x < 16) v += __shfl_xor_sync(0xffffffff, v, 8);\n__syncwarp();",
        "Name the lanes that take part.",
        "if (threadIdx.x < 16) v += __shfl_xor_sync(0x0000ffff, v, 8);\n__syncwarp();",
    ),
    Explanation(
        "deadlock",
        "deadlock",
        "No thread can continue: threads wait for arrivals that never happen, or poll memory that no thread changes.",
        "while (atomicCAS(lock, 0, 1)) {}  // and never: atomicExch(lock, 0)",
        "Check the events that the threads wait for: the message names their source lines.",
        "while (atomicCAS(lock, 0, 1)) {}\natomicExch(lock, 0);",
    ),
    Explanation(
        "in-flight-read",
        "read of data still in flight",
        "Shared memory is read while an asynchronous copy, not yet waited for, is going to write it.",
        "__pipeline_memcpy_async(s + t, a + t, 4);\n__pipeline_commit();\nx = s[t];",
        "Wait for the copy, and put a barrier before other threads' data is read.",
        "__pipeline_memcpy_async(s + t, a + t, 4);\n__pipeline_commit();\n__pipeline_wait_prior(0);\n__syncthreads();\nx = s[t];",
    ),
    Explanation(
        "in-flight-write",
        "write over data still in flight",
        "Shared memory is written while an asynchronous copy, not yet waited for, is going to write it too.",
        "__pipeline_memcpy_async(s + t, a + t, 4);\ns[t] = 0;",
        "Wait for the copy first.",
        "__pipeline_memcpy_async(s + t, a + t, 4);\n__pipeline_commit();\n__pipeline_wait_prior(0);\ns[t] = 0;",
    ),
    Explanation(
        "missing-warpgroup-fence",
        "missing wgmma.fence",
        "Registers that a wgmma uses were accessed before it, and no wgmma.fence lies between.",
        "d[0] = 0.0f;\nwgmma(d, a, b);",
        "All threads of the warpgroup fence after the last access and before the first wgmma.",
        "d[0] = 0.0f;\nwgmma_fence();\nwgmma(d, a, b);",
    ),
    Explanation(
        "early-warpgroup-fence",
        "wgmma.fence before an access to its registers",
        "Registers are accessed between a wgmma.fence and the wgmma that uses them; compilers move accesses there, too.",
        "wgmma_fence();\nd[0] *= 2.0f;\nwgmma(d, a, b);",
        "An empty asm volatile with the registers as operands, right before the fence, keeps accesses before it.",
        'd[0] *= 2.0f;\nasm volatile("" : "+f"(d[0]) :: "memory");\nwgmma_fence();\nwgmma(d, a, b);',
    ),
    Explanation(
        "register-in-flight",
        "register of a wgmma in flight",
        "A thread touches a register that a wgmma, not yet waited for, reads or writes.",
        "wgmma(d, a, b);\nwgmma_commit();\nout = d[0];",
        "Wait for the group first.",
        "wgmma(d, a, b);\nwgmma_commit();\nwgmma_wait<0>();\nout = d[0];",
    ),
    Explanation(
        "unfinished-wgmma",
        "wgmma never waited for",
        "A thread ends without having waited for a wgmma: its result is lost.",
        "wgmma(d, a, b);\nwgmma_commit();\nreturn;",
        "Wait for every group.",
        "wgmma(d, a, b);\nwgmma_commit();\nwgmma_wait<0>();\nreturn;",
    ),
    Explanation(
        "invalid-matrix",
        "invalid matrix operand",
        "The descriptor of an operand in shared memory has no meaning, or points outside shared memory.",
        "uint64_t descriptor = address | leading << 16 | stride << 32 | swizzle << 62;  // in bytes",
        "Build the descriptor from the tile's address, its two strides and its swizzle, all in units of 16 bytes.",
        "uint64_t descriptor = (address >> 4) | (leading >> 4) << 16 | (stride >> 4) << 32 | swizzle << 62;",
    ),
    Explanation(
        "tensor-memory-in-flight",
        "tensor memory still in use",
        "Threads access tensor memory that a product, a copy or a load in flight still reads or writes. Products run asynchronously and "
        "announce their end only by tcgen05.commit at an mbarrier.",
        "if (threadIdx.x == 0) tcgen05_mma(sums, a, b);\nx = tcgen05_ld(sums);",
        "Commit the product to an mbarrier, wait there, and put a tcgen05 fence behind the wait.",
        "if (threadIdx.x == 0) {\n    tcgen05_mma(sums, a, b);\n    tcgen05_commit(&done);\n}\nbarrier_wait(&done, 0);\n"
        "tcgen05_fence_after();\nx = tcgen05_ld(sums);",
    ),
    Explanation(
        "tensor-load-in-flight",
        "result of tcgen05.ld before its wait",
        "A thread uses a register that a tcgen05.ld is still going to write. The load is asynchronous; the compiler does not wait for it.",
        "x = tcgen05_ld(sums);\nout[threadIdx.x] = x;",
        "Wait with tcgen05.wait::ld before the first use.",
        "x = tcgen05_ld(sums);\ntcgen05_wait_ld();\nout[threadIdx.x] = x;",
    ),
    Explanation(
        "missing-tensor-fence",
        "missing tcgen05 fence",
        "Threads order their accesses to tensor memory by a barrier or an mbarrier, but without the fences of tcgen05, which its "
        "asynchronous instructions need in addition.",
        "barrier_wait(&done, 0);\nx = tcgen05_ld(sums);",
        "Put tcgen05.fence::before_thread_sync before the arrival or barrier, and tcgen05.fence::after_thread_sync behind the wait or "
        "barrier.",
        "barrier_wait(&done, 0);\ntcgen05_fence_after();\nx = tcgen05_ld(sums);",
    ),
    Explanation(
        "tensor-race",
        "race in tensor memory",
        "Two threads access the same cells of tensor memory, at least one of them writes, and nothing orders the two.",
        "x = tcgen05_ld(sums);\ntcgen05_wait_ld();\nif (threadIdx.x == 0) tcgen05_mma(sums, a, b);",
        "Order them: a tcgen05 fence, a barrier of the threads, and a tcgen05 fence.",
        "x = tcgen05_ld(sums);\ntcgen05_wait_ld();\ntcgen05_fence_before();\n__syncthreads();\ntcgen05_fence_after();\n"
        "if (threadIdx.x == 0) tcgen05_mma(sums, a, b);",
    ),
    Explanation(
        "tensor-memory-misuse",
        "misused tensor memory",
        "Tensor memory that is not allocated, not freed before the block ends, freed twice, allocated after the permit was given up, or "
        "accessed by a warp that cannot reach its lanes: warp w of a warpgroup reaches lanes 32 w to 32 w + 31.",
        "if (threadIdx.x < 32) tcgen05_alloc(&slot, 32);",
        "Free it in the end, with the same number of columns.",
        "if (threadIdx.x < 32) tcgen05_alloc(&slot, 32);\n__syncthreads();\nif (threadIdx.x < 32) tcgen05_dealloc(slot, 32);",
    ),
    Explanation(
        "lanes-of-first-warp",
        "lanes of another warp",
        "A warp loads or stores tensor memory at an address that names lane 0, but may access a later quarter of the lanes only: "
        "warp w of a group of four reaches lanes 32 w to 32 w + 31. Public kernels do so and rely on the device to take the quarter "
        "from the warp; the launch continues with the lanes of this warp.",
        "x = tmem_ld(sums);",
        "Put the first lane of the quarter in the upper half of the address, as the PTX ISA asks.",
        "x = tmem_ld(sums + (threadIdx.x / 32 % 4 * 32u << 16));",
    ),
    Explanation(
        "unfinished-copy",
        "asynchronous operation outlives its block",
        "A block ends while an asynchronous operation still reads or writes its shared memory. Of a bulk store that is in flight this is a "
        "warning, and the store is done: GPUs of today end it too, but PTX does not promise that, since the shared memory may belong to "
        "another block by then.",
        "copy_bulk(shared, global, bytes, barrier);\nreturn;",
        "Wait for the barrier, or for the bulk group, before the block ends.",
        "copy_bulk(shared, global, bytes, barrier);\nbarrier_wait(barrier, phase);\nreturn;",
    ),
    Explanation(
        "unfenced-ticket",
        "no fence behind the ticket",
        "A block publishes data with a fence and an atomic operation (a ticket, a counter). Another thread sees the result of that "
        "operation and reads the data, but executes no fence in between, so the memory model does not order the read behind the write. "
        "The CUDA programming guide and samples use this pattern, and GPUs of today run it, so it is a warning. Polling a flag without "
        "a fence behind it is an error.",
        "part[blockIdx.x] = sum;\n__threadfence();\nif (atomicAdd(&tickets, 1) == gridDim.x - 1) total(part);",
        "Put a fence behind the atomic operation too, or use cuda::atomic_ref with memory_order_acq_rel.",
        "part[blockIdx.x] = sum;\n__threadfence();\nif (atomicAdd(&tickets, 1) == gridDim.x - 1) { __threadfence(); total(part); }",
    ),
    Explanation(
        "stale-read",
        "read-only load of memory that the launch writes",
        "ld.global.nc reads through a cache that may not see the launch's writes. The compiler chooses it for pointers that are "
        "const and __restrict__, and for __ldg().",
        "a[threadIdx.x] = 1;\n__syncthreads();\nout[threadIdx.x] = __ldg(&a[63 - threadIdx.x]);",
        "Use a plain load, and leave out const __restrict__ where memory is written.",
        "a[threadIdx.x] = 1;\n__syncthreads();\nout[threadIdx.x] = a[63 - threadIdx.x];",
    ),
    Explanation(
        "barrier-misuse",
        "misused barrier",
        "A barrier in shared memory is used before it is initialised, counted beyond its limits, or touched as if it were data.",
        "__shared__ uint64_t barrier;\nbarrier_arrive(&barrier);",
        "One thread initialises it, then all meet at a __syncthreads().",
        "__shared__ uint64_t barrier;\nif (threadIdx.x == 0) barrier_init(&barrier, 1);\n__syncthreads();\nbarrier_arrive(&barrier);",
    ),
    Explanation(
        "cluster-misuse",
        "misused cluster",
        "Shared memory or a barrier of another block of the cluster is used when that block need not have started, or may have ended.",
        "*cluster.map_shared_rank(&value, 1) = 1;",
        "A cluster barrier after the start and one before the end.",
        "cluster.sync();\n*cluster.map_shared_rank(&value, 1) = 1;\ncluster.sync();",
    ),
    Explanation(
        "early-barrier-use",
        "barrier used before its initialisation is visible",
        "Threads use an mbarrier that another thread initialised, and nothing tells them that this has happened.",
        "if (threadIdx.x == 0) init(&bar, blockDim.x);\nbar.arrive_and_wait();",
        "Let the block meet behind the initialisation.",
        "if (threadIdx.x == 0) init(&bar, blockDim.x);\n__syncthreads();\nbar.arrive_and_wait();",
    ),
    Explanation(
        "missing-init-fence",
        "missing fence after the initialisation of a barrier",
        "The copy engine or another block of the cluster uses an mbarrier whose initialisation no fence has made visible to it.",
        "barrier_init(&barrier, 1);  // mbarrier.init\ncopy_bulk(tile, source, bytes, &barrier);",
        "Put fence.mbarrier_init behind the initialisation, and a barrier of the cluster where other blocks use it.",
        'barrier_init(&barrier, 1);\nasm volatile("fence.mbarrier_init.release.cluster;");\ncopy_bulk(tile, source, bytes, &barrier);',
    ),
    Explanation(
        "missing-proxy-fence",
        "missing proxy fence",
        "An engine (an asynchronous bulk copy, wgmma) reads or overwrites shared memory that threads have written by ordinary stores. The "
        "engine goes another way to memory, and barriers alone do not order the two.",
        "tile[threadIdx.x] = x;\n__syncthreads();\nif (threadIdx.x == 0) cp_async_bulk_store(out, tile);",
        "Each thread that wrote executes fence.proxy.async before the barrier behind which the engine starts.",
        "tile[threadIdx.x] = x;\nfence_proxy_async();\n__syncthreads();\nif (threadIdx.x == 0) cp_async_bulk_store(out, tile);",
    ),
    Explanation(
        "copy-without-proxy-fence",
        "missing proxy fence after cp.async",
        "An engine (an asynchronous bulk copy, wgmma) reads or overwrites shared memory that cp.async has written. cp.async goes the way "
        "of ordinary stores, so that PTX demands a fence; many kernels have none, and GPUs of today run them. A warning; an error by "
        "strict rules.",
        "cp_async(tile, source);  // with cp.async.wait_all\n__syncthreads();\nif (threadIdx.x == 0) cp_async_bulk_store(out, tile);",
        "Each thread that copied executes fence.proxy.async behind cp.async.wait_group, before the barrier.",
        "cp_async(tile, source);\nfence_proxy_async();\n__syncthreads();\nif (threadIdx.x == 0) cp_async_bulk_store(out, tile);",
    ),
    Explanation(
        "refill-without-proxy-fence",
        "missing proxy fence before a refill",
        "An asynchronous bulk copy overwrites shared memory that threads have read by ordinary loads. A barrier orders the loads before "
        "the issue of the copy; only a proxy fence orders them before the engine's writes. Reported by strict rules only: most pipelines "
        "have no such fence, and GPUs of today run them.",
        "x = tile[threadIdx.x];\n__syncthreads();\nif (threadIdx.x == 0) copy_bulk(tile, source, bytes, &barrier);",
        "Each thread that read executes fence.proxy.async before it releases the buffer.",
        "x = tile[threadIdx.x];\nfence_proxy_async();\n__syncthreads();\nif (threadIdx.x == 0) copy_bulk(tile, source, bytes, &barrier);",
    ),
    Explanation(
        "missing-map-fence",
        "missing fence of a changed tensor map",
        "A tensor copy goes by a tensor map in global memory that threads of the launch have changed. The copy engine caches "
        "maps: the change has to be released, and each block that uses the map has to acquire it.",
        "tensormap_replace(map);  // tensormap.replace.tile...global\nload_tile(tile, map, &barrier);",
        "fence.proxy.tensormap::generic.release behind the change (tensormap.cp_fenceproxy, which copies a map from shared memory, is "
        "one), and fence.proxy.tensormap::generic.acquire [map], 128 by a thread of each block before its copies.",
        "tensormap_replace(map);\nfence_release_map();\nfence_acquire_map(map);\nload_tile(tile, map, &barrier);",
    ),
    Explanation(
        "outliving-access",
        "shared memory of a block that may have ended",
        "A block accesses the shared memory of another one of its cluster, which need not wait for it before it ends. Shared memory goes "
        "with its block.",
        "x = remote[threadIdx.x];\n// end of the kernel",
        "Let all blocks of the cluster meet before they end.",
        "x = remote[threadIdx.x];\ncluster.sync();",
    ),
    Explanation(
        "unordered-launch",
        "memory of the launch before, without a wait",
        "A kernel that may begin before the preceding kernel has ended touches that kernel's memory before griddepcontrol.wait.",
        "y[i] = x[i];  // x comes from the kernel before",
        "Wait first: cudaGridDependencySynchronize().",
        "cudaGridDependencySynchronize();\ny[i] = x[i];",
    ),
    Explanation(
        "register-pool-misuse",
        "misused register pool",
        "setmaxnreg with a number, or at a place, that its rules do not allow.",
        'asm volatile("setmaxnreg.dec.sync.aligned.u32 240;");  // compiled for 168',
        "Use a multiple of 8 from 24 to 256, less than the warps' registers for dec and more for inc, in all warps of a warpgroup.",
        'asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");',
    ),
    Explanation(
        "bad-allocation",
        "bad free",
        "A kernel frees a pointer that malloc did not return, or that was freed before.",
        "free(p);\nfree(p);",
        "Free every allocation once. Accesses to freed memory are reported as out of bounds.",
        "free(p);\np = nullptr;",
    ),
    Explanation(
        "invalid-copy",
        "invalid asynchronous copy",
        "An asynchronous copy with operands that PTX gives no meaning, or into memory that it cannot reach.",
        "copy_bulk(tile, source, 20, &barrier);",
        "cp.async copies 4, 8 or 16 bytes; a bulk copy a multiple of 16, between addresses that are multiples of 16.",
        "copy_bulk(tile, source, 32, &barrier);",
    ),
    Explanation(
        "trapped",
        "trap",
        "The kernel executed `trap`, or an assertion in it failed.",
        "assert(n > 0);",
        "The message names the assertion's line and the threads.",
        "if (n <= 0) return;",
    ),
    Explanation(
        "schedule-dependent",
        "result depends on the schedule",
        "Two orders of warps, both of which hardware may take, leave different results. Sums of floating-point numbers by atomics do.",
        "int place = atomicAdd(count, 1);\nout[place] = threadIdx.x;",
        "Give every element one writer, or an order.",
        "atomicAdd(count, 1);\nout[threadIdx.x] = threadIdx.x;",
    ),
    Explanation(
        "wrong-result",
        "wrong result",
        "An array is not what --expect says.",
        "--expect y=@reference.npy --rtol 1e-6",
        "The first element that differs is named; --rtol and --atol say how far a result may be from the reference.",
        "--expect y=@reference.npy --rtol 1e-5",
    ),
)
EXPLANATIONS = {page.code: page for page in _PAGES}


def explain(code: str) -> str:
    """The page of a code; of all codes that contain the word; all of them for `all`. Raises ``UnusableInput``.

    A finding without a separate page is explained by the description of its kind.
    """
    wanted = code.lower().replace("_", "-").replace(" ", "-")
    if wanted in EXPLANATIONS:
        return str(EXPLANATIONS[wanted])
    short = _short_pages()
    found = [str(page) for page in _PAGES if wanted == "all" or wanted in page.code or wanted in page.title.replace(" ", "-")]
    found += [text for name, text in short.items() if wanted == "all" or wanted in name]
    if not found:
        raise UnusableInput(f"--explain {code}: no finding has this name; the names are {', '.join([*EXPLANATIONS, *short])}")
    return "\n".join(found).rstrip("\n")


def codes_of_findings() -> list[str]:
    """The codes that findings may have."""
    return [*EXPLANATIONS, *_short_pages()]


def _short_pages() -> dict[str, str]:
    """Descriptions of the kinds of findings that have no page."""
    from gemmgen import emulator

    pages = {}
    for name in emulator.__all__:
        kind = getattr(emulator, name)
        if isinstance(kind, type) and issubclass(kind, emulator.EmulatorError) and code_of(kind) not in EXPLANATIONS:
            meaning = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
            hint = getattr(kind, "hint", "")
            remedy = f"\n\n{hint[:1].upper()}{hint[1:]}." if hint else ""
            pages[code_of(kind)] = f"{kind.title} [{code_of(kind)}]\n\n{meaning}{remedy}\n"
    return pages


def as_markdown() -> str:
    """All pages as the document `docs/findings.md`."""
    lines = ["# Findings of `gemmgen emulate`", ""]
    lines += ["`gemmgen emulate --explain CODE` shows these pages too. Kinds that are missing here explain themselves in the message.", ""]
    for page in _PAGES:
        lines += [f"## {page.title}", "", f"`{page.code}`. {page.meaning}", "", "```cuda", page.example, "```", ""]
        lines += [page.remedy, "", "```cuda", page.fixed, "```", ""]
    return "\n".join(lines).rstrip() + "\n"
