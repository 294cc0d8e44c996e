"""The viewer of runs: a page on this machine that reads their stores and nothing else."""
