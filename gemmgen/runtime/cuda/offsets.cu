// Checks the ends of groups before the kernel that reads them: `*word` becomes `report` if an end is less than the one before or than 0,
// is greater than `limit`, or is less than `limit` and no multiple of `step`.
extern "C" __global__ void __launch_bounds__(128) check_offsets(
    const int* __restrict__ offsets, int groups, int limit, int step, int report, int* __restrict__ word)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    int wrong = 0;
    for (int group = threadIdx.x; group < groups; group += blockDim.x) {
        const int begin = group > 0 ? offsets[group - 1] : 0;
        const int end = offsets[group];
        wrong |= end < begin || end > limit || (end < limit && end % step != 0);
    }
    if (__syncthreads_or(wrong) && threadIdx.x == 0)
        *word = report;
}
