"""Small models that learn: what a pattern recalls, how an indexer chooses, the course's prose; hand-made maps, too."""
