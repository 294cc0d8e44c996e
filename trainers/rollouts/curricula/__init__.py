"""Curricula: the tasks of the next iteration, chosen by the recipe and by how earlier episodes went."""
