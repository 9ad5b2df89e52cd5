"""Models in S3."""
