"""GEMM on tensor memory of sm_100a (``tcgen05``)."""
