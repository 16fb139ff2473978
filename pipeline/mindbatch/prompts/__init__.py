"""From what a user gives to token ids: prompts, chats, tokenizers."""
