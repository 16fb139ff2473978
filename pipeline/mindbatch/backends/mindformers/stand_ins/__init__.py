"""Stand-ins for MindFormers' operators that have no CPU kernel; a file for each of its modules."""
