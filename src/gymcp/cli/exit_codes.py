"""Exit codes of ``gymcp`` that several verbs share; 1 is any other failure. It imports nothing, see `main`."""

USAGE_ERROR = 2
LOST_TO_INFRA = 3
"""Some episodes have no score, because something beside the agent failed."""
OUT_OF_MONEY = 4
INTERRUPTED = 130
"""Ended by Ctrl-C, as shells report it: 128 and the number of the signal."""
