"""Caveats of a report: denominators, users that a model plays, and tasks that are known to be faulty."""
