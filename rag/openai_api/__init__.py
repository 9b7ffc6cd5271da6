"""OpenAI's API: what clients send, which model they mean, what they are answered."""
