"""Place of a process among others, and their rendezvous."""
