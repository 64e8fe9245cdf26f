"""Kernels of attention: the reference, the oracle of all others, and the fast ones. They never import each other."""
