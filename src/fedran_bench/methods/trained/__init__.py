"""Methods that train a network or a linear head by gradient descent."""
