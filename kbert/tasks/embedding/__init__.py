"""Text embeddings, trained on pairs, triplets, scores, a teacher's vectors, or texts alone."""
