"""One file per Hugging Face model_type, and the decoder that all of them are."""
