"""Value types, shared by options, request parameters and live settings."""
