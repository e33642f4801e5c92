"""The graph's three nodes: (state, config) → partial state update. They know neither torch nor pyiqa nor
YAML."""
