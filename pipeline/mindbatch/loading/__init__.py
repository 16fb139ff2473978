"""Makes an engine of a configuration: checks the model's folder, sizes the cache, loads the weights."""
