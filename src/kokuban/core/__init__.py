"""The vocabulary that all layers share. Imports nothing of ours."""
