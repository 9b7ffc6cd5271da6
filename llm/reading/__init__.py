"""The parts of `llm.output`: tokens → text, reasoning and tool calls, by vLLM's parsers."""
