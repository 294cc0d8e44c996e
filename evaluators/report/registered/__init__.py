"""Registered comparisons of training arms, as files of the package, and a page of them beside a run of one's own."""
