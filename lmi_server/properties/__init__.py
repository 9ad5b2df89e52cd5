"""Configuration from serving.properties and the environment: file format, options and validation."""
