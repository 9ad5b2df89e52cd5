"""Predict what a configuration needs, from config.json and weight headers alone. Does not import torch."""
