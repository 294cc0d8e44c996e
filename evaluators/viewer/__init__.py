"""The viewer of runs: a page on this machine that reads the runs' stores and nothing else."""
