"""Where a process stands among others, and how they meet."""
