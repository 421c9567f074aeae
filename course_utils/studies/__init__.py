"""Small models that learn: what a sparse pattern can recall, how an indexer learns to choose, and maps made by hand."""
