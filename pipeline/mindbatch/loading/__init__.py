"""From a configuration to an engine: a folder described, checked, sized, loaded."""
