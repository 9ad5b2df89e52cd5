"""serving.properties and the environment: the grammar, the options and what they come to."""
