"""Credit on recorded trees: episodes that fork share the steps before the fork."""
