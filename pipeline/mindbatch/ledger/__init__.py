"""What a run has finished, kept so that neither a kill, a power cut nor a full disk loses a row."""
