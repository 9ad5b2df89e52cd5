"""The API of a user's handler: bytes and headers pass through."""
