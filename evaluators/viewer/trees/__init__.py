"""Trees of episodes in the viewer."""
