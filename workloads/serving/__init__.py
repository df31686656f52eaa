"""Load on an endpoint that speaks OpenAI's API: what to ask, when, and what the answers took."""
