"""Strategy ``tiled``: tiles in shared memory and in registers, multiplied by FFMA."""
