"""Vectors of texts: trained by pairs, triplets, scores, a teacher, or texts alone."""
