"""Speed and memory as ratios within one run, and the bars of the verdict."""
