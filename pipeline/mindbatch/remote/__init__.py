"""Data that is elsewhere, on hubs and in object stores: rows fetched from there, results uploaded."""
