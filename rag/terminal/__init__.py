"""Asking from a terminal: by the running service, else by an engine started for it."""
