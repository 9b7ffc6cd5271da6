"""From options to a running vLLM: its processes, how they start, what they log, and how they end."""
