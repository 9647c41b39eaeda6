"""From a model on disk, as others publish it, to a model folder."""
