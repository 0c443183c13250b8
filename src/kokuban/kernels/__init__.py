"""One Python face for each operation; variants: native (C++), reference (NumPy)."""
