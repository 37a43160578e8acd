"""Methods that train a few tensors of a frozen Vision Transformer, one file per method."""
