"""Models that are given by the name they have on a hub: found in the local cache, or fetched into it."""
