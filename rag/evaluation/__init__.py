"""`groundwell eval`: questions with known answers, asked of a knowledge base and counted."""
