"""Products with weights: linears, experts, embeddings."""
