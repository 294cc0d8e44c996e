"""Caveats of a report: denominators, users that a model plays, tasks that are known to be faulty, limits of credit."""
