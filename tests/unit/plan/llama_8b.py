"""Llama-3.1-8B, the model of the planning vectors, and the H100 that they run it on."""

from kokuban.models.registry import build_program
from kokuban.plan.roofline import Machine
from kokuban.simulate.presets import MODELS

PROGRAM = build_program(MODELS["llama-8b"])

H100 = Machine(flops_per_s=989e12, bytes_per_s=3.35e12)
