"""KV memory: who holds which block (ints), and where its bytes lie (arrays)."""
