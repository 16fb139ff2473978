"""LoRA adapters: read strictly, and merged into weights of any portion."""
