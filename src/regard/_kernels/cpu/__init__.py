"""Kernels for the CPU: additive attention, recurrences and statistics, in loops that Numba compiles."""
