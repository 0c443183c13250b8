"""Traces of real traffic, replayed through pool, manager and scheduler without a model."""
