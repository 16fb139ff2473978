"""Launching on several devices: rank tables, and the processes of a job on a machine."""
