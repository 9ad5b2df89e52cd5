"""Operations with weights: linear layers, experts, embeddings."""
