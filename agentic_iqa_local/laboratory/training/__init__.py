"""How the embedded VLM is made: synthetic distortions, role samples, tokenizer and training loop. Never
imported at run time."""
