"""Files that appear whole, strict JSON, streams, processes, the one gate to the terminal, and errors."""
