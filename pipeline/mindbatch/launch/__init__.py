"""Launching on several devices: rank tables. Plain Python that needs nothing but the standard library."""
