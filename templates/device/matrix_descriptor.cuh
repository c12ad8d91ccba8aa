// Descriptors by which matrix instructions of warpgroups find operands in shared memory (PTX ISA, "Matrix Descriptor
// Format"): strides in the upper half of 64 bits; in the lower half the address, so that adding to it moves an operand.

// Unit of the addresses and strides in descriptors, in bytes.
constexpr int kDescriptorUnit = 16;

// The lower half for an address. kLeadingBytes: from a row's end to the next elements along m or n; ignored where rows
// run along k.
template <int kLeadingBytes>
__device__ __forceinline__ unsigned descriptor_position(unsigned address)
{
    constexpr unsigned kAddressBits = 0x3ffff;  // of an address in a descriptor
    return kLeadingBytes / kDescriptorUnit << 16 | (address & kAddressBits) / kDescriptorUnit;
}

// The descriptor of an operand in swizzled rows of kRowBytes, 32, 64 or 128, with this lower half.
template <int kRowBytes>
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned position)
{
    constexpr unsigned kSwizzle = kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3;  // code of the swizzle
    constexpr unsigned kStrideBytes = 8 * kRowBytes;  // from eight rows to the next
    constexpr unsigned kLayout = kSwizzle << 30 | kStrideBytes / kDescriptorUnit;
    return static_cast<unsigned long long>(kLayout) << 32 | position;
}

// Offset of an instruction's part of an operand along k, in bytes: kRowSteps instructions read from one row of shared
// memory, the next kRowSteps from kSpanBytes further.
template <int kStepBytes, int kRowSteps = 1, int kSpanBytes = 0>
__device__ __forceinline__ int step_offset(int step)
{
    if constexpr (kRowSteps == 1)
        return step * kStepBytes;
    else
        return step / kRowSteps * kSpanBytes + step % kRowSteps * kStepBytes;
}
