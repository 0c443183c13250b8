"""A model as a straight list of operations, with shapes, FLOPs and bytes."""
