"""Settings of an endpoint by default. Importing them imports no client."""

KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable that holds an endpoint's key."""
REQUEST_TIMEOUT_S = 120.0
"""Seconds for one answer of a judge's or a user's model; an agent's model has the agent's time."""
