"""Stand-ins for MindFormers' operators that have no CPU kernel."""
