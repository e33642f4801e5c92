"""How sure an answer is, where the damage is, and which picture is better."""
