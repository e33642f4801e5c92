"""The graph's three nodes: (state, config, runtime) → partial state update. They know neither torch nor pyiqa
nor YAML. In the graph the runtime's context is the assessment's opened images; called by itself, a node takes
the services in `config["configurable"]`, or loads the default ones, and opens the images of its state."""
