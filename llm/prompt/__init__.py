"""The parts of `llm.prompting`: turns that a chat template takes, and ids in which content is only text."""
