"""Which elements of a tensor each rank holds, and the copies from one placement to another, proved."""
