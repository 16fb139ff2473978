"""A model and its folder, described and checked: the registry of types, `ModelSpec`, what is stored."""
