// Addresses in shared memory.

// The 32-bit address of an object in shared memory, as instructions expect it.
__device__ __forceinline__ unsigned shared_address(const void* pointer)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
