"""Logging, metrics, clocks and events: how the engine is seen from outside."""
