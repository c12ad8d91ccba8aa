// Stages that are filled and read in turn, and pieces of work that a producer draws for its consumers.

// Advances to the next of kStages stages; the phase of their barriers changes after the last.
template <int kStages>
__device__ __forceinline__ void advance(int& stage, int& phase)
{
    if (++stage == kStages) {
        stage = 0;
        phase ^= 1;
    }
}
