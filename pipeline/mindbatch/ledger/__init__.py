"""Finished rows of a run, kept so that neither a kill, a power cut nor a full disk loses one."""
