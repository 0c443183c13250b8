"""Runs before NumPy is loaded."""

import os

# Two threads of NumPy's BLAS spin against each other on a busy machine: four times the CPU time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # noqa: TID251
