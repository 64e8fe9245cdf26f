"""Statistics of attention weights: the request, their formulas, and dot-product scores in blocks."""
