"""What `kokuban bench` does: measures the machine, the kernels, the engine, and any server."""
