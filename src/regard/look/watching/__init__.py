"""Watching a model: the functions it calls, and what is recorded of each."""
