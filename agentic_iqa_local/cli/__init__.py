"""The commands that an installation has; scripts/ runs the same ones from a checkout."""
