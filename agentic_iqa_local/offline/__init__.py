"""Everything that brings models and tools to a machine without a network."""
