"""Rooflines, memory budgets and costs, worked out from the Program."""
