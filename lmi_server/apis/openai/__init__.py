"""OpenAI's bodies and answers: chats, completions and the list of models."""
