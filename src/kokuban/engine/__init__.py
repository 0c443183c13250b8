"""The step loop, its clients, and the offline face. The composition root."""
