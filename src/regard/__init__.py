"""Attention for PyTorch that you can see."""

__version__ = "0.1.0"
