"""Architectures: functions from a ModelConfig to a Program."""
