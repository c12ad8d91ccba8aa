"""Strategy ``mma_sync``: warps multiply fragments on tensor cores of sm_80 and later."""
