"""The API of a user's handler. Bytes and headers are passed through."""
