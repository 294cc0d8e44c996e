"""Notes, labels and verdicts of people beside the episodes."""
