"""`mindbatch replay`: one row of a run once more, compared with what the run has of it."""
