"""Names and forms of tensors in MindFormers checkpoints, and the Hugging Face tensors they are made of."""
