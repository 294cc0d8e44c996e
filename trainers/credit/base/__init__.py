"""Presets that differ in their loss more than in their comparison: on-policy, off-policy and supervised."""
