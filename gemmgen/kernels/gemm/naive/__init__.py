"""Strategy ``naive``: a thread for each element of C, straight from global memory."""
