"""Between bytes and tensors: one adapter, one kind of input."""
