"""Kernels: the reference, which is the oracle of all others, and those that are fast. They never import each other."""
