"""The operations that models are made of, each declared by its NumPy function."""
