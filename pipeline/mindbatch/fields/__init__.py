"""Fields: what a value given by users may be, and what is declared of each."""
