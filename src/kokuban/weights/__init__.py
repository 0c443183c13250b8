"""Model files: where they come from, how they are read, checked and packed."""
