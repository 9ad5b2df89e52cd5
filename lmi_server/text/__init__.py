"""The text side of a model: tokenizer, chat template, stop strings."""
