"""Kokuban: an LLM inference engine and server that shows its work."""

__version__ = "0.1.0"
