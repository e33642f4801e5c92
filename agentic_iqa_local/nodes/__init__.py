"""The graph's three nodes: (state, config, runtime) → partial state update. In the graph the runtime's context is the
assessment's workbench; a node that is called by itself opens its own, with services of `config` or the default."""
