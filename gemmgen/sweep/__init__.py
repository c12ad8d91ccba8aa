"""Sweeps: many specs planned, compiled, verified and timed, each point in a process that may die, every result kept."""
