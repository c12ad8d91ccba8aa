// Places in images, whose padding lies outside.

// 1 if a row or a column lies within an image of this extent, else 0.
__device__ __forceinline__ unsigned lies_within(int at, int extent)
{
    return static_cast<unsigned>(at) < static_cast<unsigned>(extent);
}
