"""Pages of HTML that need nothing beside them: one kernel from source to machine code, and two kernels compared."""
