"""Pages on the findings: the meaning, a minimal example, and the fix of each."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from gemmgen.sanitizer.findings import code_of
from gemmgen.sanitizer.source import UnusableInput

PAGE_COLUMNS = 100
"""Width of the prose of a page that is printed."""


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
        meaning, remedy = (textwrap.fill(text, PAGE_COLUMNS, break_on_hyphens=False) for text in (self.meaning, self.remedy))
        return f"{self.title} [{self.code}]\n\n{meaning}\n\n{wrong}\n\n{remedy}\n\n{right}\n"


_PAGES = (
    Explanation(
        "shared-race",
        "shared memory race",
        "Two threads of a block access the same byte of shared memory, at least one of them writes, and no barrier orders the two "
        "accesses. Their order is undefined, even if the result happens to be right. Shuffles and votes do not order memory accesses.",
        "__shared__ int s[64];\ns[threadIdx.x] = in[threadIdx.x];\nout[threadIdx.x] = s[63 - threadIdx.x];",
        "Put a barrier between the two accesses: __syncthreads() for the block, __syncwarp() if both threads belong to one warp.",
        "__shared__ int s[64];\ns[threadIdx.x] = in[threadIdx.x];\n__syncthreads();\nout[threadIdx.x] = s[63 - threadIdx.x];",
    ),
    Explanation(
        "global-race",
        "global memory race",
        "Two threads access the same byte of global memory, at least one of them writes, and nothing orders the accesses. Barriers order "
        "threads of one block. Threads of different blocks need a release and an acquire: a fence before a strong write, a strong read "
        "that sees the write, and a fence after that read. The first read of a compare-and-swap loop is not reported, because the swap "
        "checks it. The swap does not check other words: a pop that reads top->next while another thread pops the node and pushes it "
        "again is a race, and the swap may succeed on a node that came back. Make next atomic, and count changes beside head.",
        "sum[blockIdx.x] += in[blockIdx.x * blockDim.x + threadIdx.x];",
        "Let each thread write separate elements, or use atomic operations.",
        "atomicAdd(&sum[blockIdx.x], in[blockIdx.x * blockDim.x + threadIdx.x]);",
    ),
    Explanation(
        "lockstep-race",
        "lanes that rely on lockstep",
        "Lanes of one warp pass data through volatile shared memory without a barrier. That worked while lanes ran in lockstep; since "
        "Volta they do not. A warning; an error with --strict.",
        "volatile int* s = shared;\nif (t < 16) s[t] += s[t + 16];\nif (t < 8) s[t] += s[t + 8];",
        "Put __syncwarp() between the steps, or use shuffles.",
        "volatile int* s = shared;\nif (t < 16) s[t] += s[t + 16];\n__syncwarp();\nif (t < 8) s[t] += s[t + 8];",
    ),
    Explanation(
        "scope-race",
        "scope too narrow",
        "Threads of different blocks use an atomic operation of block scope on one variable, so updates may be lost.",
        "atomicAdd_block(counter, 1);  // all blocks count with one counter",
        "Use an atomic operation of device scope.",
        "atomicAdd(counter, 1);",
    ),
    Explanation(
        "volatile-race",
        "unordered volatile accesses",
        "Two threads access one variable through volatile pointers, at least one writes, and nothing orders the accesses. PTX performs "
        "each access as a whole, but C++ calls this a data race. A flag that a thread polls in a loop is not reported. A warning; an "
        "error with --strict.",
        "volatile int* f = flag;\nif (blockIdx.x == 0) *f = 1;\nout[blockIdx.x] = *f;",
        "Order the two by a barrier, or use atomic operations or cuda::atomic_ref.",
        "if (blockIdx.x == 0) atomicExch(flag, 1);\nout[blockIdx.x] = atomicAdd(flag, 0);",
    ),
    Explanation(
        "same-value",
        "several threads store the same value",
        "Several threads store the same value to one address, and nothing orders the stores: a flag such as `found`. The result is right "
        "as long as the values are equal, so this is a note; with --strict it is an error.",
        "if (a[threadIdx.x] > 0) *found = 1;",
        "No fix is required; an atomic operation, or a store by one thread, makes the intent explicit.",
        "if (__syncthreads_or(a[threadIdx.x] > 0) && threadIdx.x == 0) *found = 1;",
    ),
    Explanation(
        "missed-barrier",
        "barrier that not all threads reach",
        "Some threads of the block have returned before a __syncthreads() that the others wait at. Hardware does not count threads "
        "that have ended, but CUDA requires that all threads of the block reach the barrier. A warning; an error with --strict.",
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
        "Write the memory before it is read. Look for a store that is masked off, a barrier too early, or an index into padding.",
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
        "A lane reads, by a shuffle, from a lane that is not in the mask or that has ended. The value is undefined, and the kernel "
        "uses it.",
        "if (threadIdx.x < 16) v = __shfl_sync(0xffff, v, 20);",
        "Let every lane that sends or receives a value execute the shuffle, and name exactly these lanes in the mask.",
        "v = __shfl_sync(0xffffffff, v, 20);",
    ),
    Explanation(
        "out-of-bounds",
        "out of bounds",
        "An access to memory that belongs to no array, no variable and no shared allocation. The emulator puts guard bytes around "
        "every array and between the shared arrays of a kernel, so it reports an overrun even if another array follows. A GPU maps "
        "memory in pages of 2 MiB. It performs an access to padding, freed memory or whatever else lies in a page with an allocation, "
        "and one between shared arrays, so the launch continues after these. Any other access ends the launch, and later calls return "
        "an error.",
        "int i = blockIdx.x * blockDim.x + threadIdx.x;\ny[i] = x[i];  // with more threads than elements",
        "Guard the access, or launch fewer threads.",
        "int i = blockIdx.x * blockDim.x + threadIdx.x;\nif (i < n) y[i] = x[i];",
    ),
    Explanation(
        "misaligned",
        "misaligned address",
        "The address is not a multiple of the width of the access, as in a vector load at an odd element.",
        "float4 v = *(const float4*)(x + 1);",
        "Align the address, or load single elements.",
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
        "Only a part of a block or of a warp reaches a barrier, or lanes of one warp wait at different barriers.",
        "if (threadIdx.x % 2) __syncthreads();\nelse { work(); __syncthreads(); }",
        "Move the barrier out of the branches.",
        "if (threadIdx.x % 2 == 0) work();\n__syncthreads();",
    ),
    Explanation(
        "divergent-warp",
        "divergent warp",
        "The mask of a warp-synchronous operation names lanes that never execute it, or omits the lane that does.",
        "if (threadIdx.x < 16) v += __shfl_xor_sync(0xffffffff, v, 8);\n__syncwarp();",
        "Name exactly the participating lanes in the mask.",
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
        "A thread reads shared memory that an asynchronous copy, not yet waited for, will write.",
        "__pipeline_memcpy_async(s + t, a + t, 4);\n__pipeline_commit();\nx = s[t];",
        "Wait for the copy, and put a barrier before other threads' data is read.",
        "__pipeline_memcpy_async(s + t, a + t, 4);\n__pipeline_commit();\n__pipeline_wait_prior(0);\n__syncthreads();\nx = s[t];",
    ),
    Explanation(
        "in-flight-write",
        "write over data still in flight",
        "A thread writes shared memory that an asynchronous copy, not yet waited for, will write too.",
        "__pipeline_memcpy_async(s + t, a + t, 4);\ns[t] = 0;",
        "Wait for the copy first.",
        "__pipeline_memcpy_async(s + t, a + t, 4);\n__pipeline_commit();\n__pipeline_wait_prior(0);\ns[t] = 0;",
    ),
    Explanation(
        "missing-warpgroup-fence",
        "missing wgmma.fence",
        "A thread accessed registers that a wgmma uses, and executed no wgmma.fence before the wgmma.",
        "d[0] = 0.0f;\nwgmma(d, a, b);",
        "Let all threads of the warpgroup execute wgmma.fence after the last access and before the first wgmma.",
        "d[0] = 0.0f;\nwgmma_fence();\nwgmma(d, a, b);",
    ),
    Explanation(
        "early-warpgroup-fence",
        "wgmma.fence before an access to its registers",
        "A thread accesses registers between a wgmma.fence and the wgmma that uses them. Compilers can also move accesses there.",
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
        "The descriptor of an operand in shared memory is invalid, or points outside shared memory.",
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
        "Commit the product to an mbarrier, wait for it, and put a tcgen05 fence after the wait.",
        "if (threadIdx.x == 0) {\n    tcgen05_mma(sums, a, b);\n    tcgen05_commit(&done);\n}\nbarrier_wait(&done, 0);\n"
        "tcgen05_fence_after();\nx = tcgen05_ld(sums);",
    ),
    Explanation(
        "tensor-load-in-flight",
        "result of tcgen05.ld before its wait",
        "A thread uses a register that a tcgen05.ld has not written yet. The load is asynchronous. Some public kernels rely on the "
        "assembler to wait, so the emulator continues with the loaded value.",
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
        "Put tcgen05.fence::before_thread_sync before the arrival or barrier, and tcgen05.fence::after_thread_sync after the wait or "
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
        "Tensor memory is used without allocation, not freed before the block ends, freed twice, allocated after the permit was given up, "
        "or accessed by a warp that cannot reach its lanes: warp w of a warpgroup reaches lanes 32 w to 32 w + 31.",
        "if (threadIdx.x < 32) tcgen05_alloc(&slot, 32);",
        "Free it before the block ends, with the same number of columns.",
        "if (threadIdx.x < 32) tcgen05_alloc(&slot, 32);\n__syncthreads();\nif (threadIdx.x < 32) tcgen05_dealloc(slot, 32);",
    ),
    Explanation(
        "lanes-of-first-warp",
        "lanes of another warp",
        "A warp loads or stores tensor memory at an address that names lane 0, but it can only access a later quarter of the lanes: "
        "warp w of a warpgroup reaches lanes 32 w to 32 w + 31. Some public kernels rely on the device to use the warp's quarter, so the "
        "emulator continues with the lanes of this warp.",
        "x = tmem_ld(sums);",
        "Put the first lane of the quarter in the upper half of the address, as the PTX ISA asks.",
        "x = tmem_ld(sums + (threadIdx.x / 32 % 4 * 32u << 16));",
    ),
    Explanation(
        "unfinished-copy",
        "asynchronous operation outlives its block",
        "A block ends while an asynchronous operation still reads or writes its shared memory. For a bulk store this is a warning, and the "
        "emulator completes the store. Current GPUs complete it too, but PTX does not guarantee it: by then the shared memory may belong "
        "to another block.",
        "copy_bulk(shared, global, bytes, barrier);\nreturn;",
        "Wait for the barrier, or for the bulk group, before the block ends.",
        "copy_bulk(shared, global, bytes, barrier);\nbarrier_wait(barrier, phase);\nreturn;",
    ),
    Explanation(
        "unfenced-ticket",
        "no fence after the ticket",
        "A block publishes data with a fence and an atomic operation (a ticket, a counter). Another thread sees the result of that "
        "operation and reads the data, but executes no fence in between, so the memory model does not order the read after the write. "
        "The CUDA programming guide and samples use this pattern, and it works on current GPUs, so it is a warning. Polling a flag "
        "without a fence after it is an error.",
        "part[blockIdx.x] = sum;\n__threadfence();\nif (atomicAdd(&tickets, 1) == gridDim.x - 1) total(part);",
        "Put a fence after the atomic operation too, or use cuda::atomic_ref with memory_order_acq_rel.",
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
        "A barrier in shared memory is used before it is initialised, counted beyond its limits, or accessed like data.",
        "__shared__ uint64_t barrier;\nbarrier_arrive(&barrier);",
        "Let one thread initialise it, and put a __syncthreads() after that.",
        "__shared__ uint64_t barrier;\nif (threadIdx.x == 0) barrier_init(&barrier, 1);\n__syncthreads();\nbarrier_arrive(&barrier);",
    ),
    Explanation(
        "cluster-misuse",
        "misused cluster",
        "A block uses shared memory or a barrier of another block of its cluster that may not have started yet, or may have ended.",
        "*cluster.map_shared_rank(&value, 1) = 1;",
        "Put a cluster barrier at the start and one before the end of the kernel.",
        "cluster.sync();\n*cluster.map_shared_rank(&value, 1) = 1;\ncluster.sync();",
    ),
    Explanation(
        "early-barrier-use",
        "barrier used before its initialisation is visible",
        "Threads use an mbarrier that another thread initialises, and nothing orders the use after the initialisation.",
        "if (threadIdx.x == 0) init(&bar, blockDim.x);\nbar.arrive_and_wait();",
        "Put __syncthreads() after the initialisation.",
        "if (threadIdx.x == 0) init(&bar, blockDim.x);\n__syncthreads();\nbar.arrive_and_wait();",
    ),
    Explanation(
        "missing-init-fence",
        "missing fence after the initialisation of a barrier",
        "TMA or another block of the cluster uses an mbarrier whose initialisation no fence has made visible to it.",
        "barrier_init(&barrier, 1);  // mbarrier.init\ncopy_bulk(tile, source, bytes, &barrier);",
        "Put fence.mbarrier_init after the initialisation, and a cluster barrier if other blocks use the mbarrier.",
        'barrier_init(&barrier, 1);\nasm volatile("fence.mbarrier_init.release.cluster;");\ncopy_bulk(tile, source, bytes, &barrier);',
    ),
    Explanation(
        "missing-proxy-fence",
        "missing proxy fence",
        "An engine (an asynchronous bulk copy, wgmma) reads or overwrites shared memory that threads have written by ordinary stores. The "
        "engine accesses memory through the async proxy, which barriers alone do not order with ordinary stores.",
        "tile[threadIdx.x] = x;\n__syncthreads();\nif (threadIdx.x == 0) cp_async_bulk_store(out, tile);",
        "Let each thread that wrote execute fence.proxy.async before the barrier that precedes the start of the engine.",
        "tile[threadIdx.x] = x;\nfence_proxy_async();\n__syncthreads();\nif (threadIdx.x == 0) cp_async_bulk_store(out, tile);",
    ),
    Explanation(
        "copy-without-proxy-fence",
        "missing proxy fence after cp.async",
        "An engine (an asynchronous bulk copy, wgmma) reads or overwrites shared memory that cp.async has written. cp.async writes "
        "through the generic proxy, like ordinary stores, so PTX requires a fence. Many kernels have none and work on current GPUs. A "
        "warning; an error with --strict.",
        "cp_async(tile, source);  // with cp.async.wait_all\n__syncthreads();\nif (threadIdx.x == 0) cp_async_bulk_store(out, tile);",
        "Let each thread that copied execute fence.proxy.async after cp.async.wait_group and before the barrier.",
        "cp_async(tile, source);\nfence_proxy_async();\n__syncthreads();\nif (threadIdx.x == 0) cp_async_bulk_store(out, tile);",
    ),
    Explanation(
        "refill-without-proxy-fence",
        "missing proxy fence before a refill",
        "An asynchronous bulk copy overwrites shared memory that threads have read by ordinary loads. A barrier orders the loads before "
        "the issue of the copy; only a proxy fence orders them before the engine's writes. Reported with --strict only: most pipelines "
        "have no such fence and work on current GPUs.",
        "x = tile[threadIdx.x];\n__syncthreads();\nif (threadIdx.x == 0) copy_bulk(tile, source, bytes, &barrier);",
        "Let each thread that read execute fence.proxy.async before it releases the buffer.",
        "x = tile[threadIdx.x];\nfence_proxy_async();\n__syncthreads();\nif (threadIdx.x == 0) copy_bulk(tile, source, bytes, &barrier);",
    ),
    Explanation(
        "missing-map-fence",
        "missing fence of a changed tensor map",
        "A tensor copy uses a tensor map in global memory that threads of the launch have changed. TMA caches maps, so the "
        "change must be released, and each block that uses the map must acquire it.",
        "tensormap_replace(map);  // tensormap.replace.tile...global\nload_tile(tile, map, &barrier);",
        "Put fence.proxy.tensormap::generic.release after the change (tensormap.cp_fenceproxy, which copies a map from shared memory, "
        "includes it), and let a thread of each block execute fence.proxy.tensormap::generic.acquire [map], 128 before its copies.",
        "tensormap_replace(map);\nfence_release_map();\nfence_acquire_map(map);\nload_tile(tile, map, &barrier);",
    ),
    Explanation(
        "outliving-access",
        "shared memory of a block that may have ended",
        "A block accesses the shared memory of another block of its cluster, and nothing keeps that block from ending first. A block that "
        "ends takes its shared memory with it.",
        "x = remote[threadIdx.x];\n// end of the kernel",
        "Put a cluster barrier before the end of the kernel.",
        "x = remote[threadIdx.x];\ncluster.sync();",
    ),
    Explanation(
        "unordered-launch",
        "memory of the preceding launch, without a wait",
        "A kernel that may begin before the preceding kernel has ended accesses that kernel's memory before griddepcontrol.wait.",
        "y[i] = x[i];  // x comes from the kernel before",
        "Wait first: cudaGridDependencySynchronize().",
        "cudaGridDependencySynchronize();\ny[i] = x[i];",
    ),
    Explanation(
        "register-pool-misuse",
        "misused register pool",
        "setmaxnreg is used with a number of registers, or in a place, that PTX does not allow.",
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
        "An asynchronous copy has operands that PTX does not allow, or a destination that it cannot reach.",
        "copy_bulk(tile, source, 20, &barrier);",
        "cp.async copies 4, 8 or 16 bytes. A bulk copy takes a multiple of 16 bytes and addresses that are multiples of 16.",
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
        "Two orders of warps, both of which hardware may take, give different results. Atomic sums of floating-point numbers do this.",
        "int place = atomicAdd(count, 1);\nout[place] = threadIdx.x;",
        "Let one thread write each element, or order the writes.",
        "atomicAdd(count, 1);\nout[threadIdx.x] = threadIdx.x;",
    ),
    Explanation(
        "wrong-result",
        "wrong result",
        "An array differs from the one given by --expect.",
        "--expect y=@reference.npy --rtol 1e-6",
        "The message names the first element that differs. --rtol and --atol set the permitted difference from the reference.",
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
    pages = [str(page) for page in _PAGES if wanted == "all" or wanted in page.code or wanted in page.title.replace(" ", "-")]
    pages += [text for name, text in short.items() if wanted == "all" or wanted in name]
    if not pages:
        raise UnusableInput(f"--explain {code}: no finding has this name; the names are {', '.join([*EXPLANATIONS, *short])}")
    return "\n".join(pages).rstrip("\n")


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
