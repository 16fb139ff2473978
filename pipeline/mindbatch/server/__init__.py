"""The HTTP server: OpenAI's API over one engine, and batches that are runs."""
