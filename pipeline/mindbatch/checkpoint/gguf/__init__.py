"""llama.cpp's files as model folders: metadata as config.json and tokenizer, tensors by their names."""
