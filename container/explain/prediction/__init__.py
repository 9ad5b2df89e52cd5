"""What a configuration will need, from config.json and the headers of weights alone. Imports no torch."""
