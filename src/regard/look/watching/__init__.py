"""Watching a model: the functions it calls, and the record of each call."""
