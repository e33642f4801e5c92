"""Studies of the agent on human scores: data sets, figures and reports. Never imported by the
assessment itself."""
