"""Verbs that look at runs: report, compare, view and watch."""
